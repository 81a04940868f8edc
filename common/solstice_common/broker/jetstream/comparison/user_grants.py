"""Tells which subjects a user of NATS may publish and subscribe to.

The server shows no user's rights: what it forbids it reports on the connection of that user. So each subject is
tried, in a way that changes nothing.
"""

from collections.abc import Collection
from typing import Final

from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.broker.jetstream.nats_connection import API_SECONDS, NatsLost, open_connection
from solstice_common.errors import ConfigurationError

NO_STREAM: Final = {"Nats-Expected-Stream": "none-of-solstice-ci"}
"""A stream of another name refuses a message with this header."""
NO_REQUEST: Final = b"-"
"""No request of JetStream's API has this body: each answers with an error."""


async def granted_rights(
    url: str, rights: Collection[tuple[str, str]], *, user: str
) -> frozenset[tuple[str, str]]:
    """Return those of the subjects under `publish` and `subscribe` that the URL's user may use.

    Raises ConfigurationError for a wrong URL, or when that is another user; BrokerUnavailable; RightMissing for a user
    who may not receive answers.
    """
    address = read_address(url)
    if user != address.user:
        raise ConfigurationError(
            f"--user: NATS shows the rights of {user!r} only to {user!r}: give its AMQP_URL"
        )
    forbidden: set[tuple[str, str]] = set()
    try:
        async with open_connection(address, "solstice topology") as opened:
            opened.on_denied = lambda right, subject: forbidden.add((right, subject.lower()))
            tried = {right: (right[0], right[1].replace(">", "0").lower()) for right in rights}
            for right, subject in rights:
                if right == "subscribe":
                    subscription = await opened.client.subscribe(subject)
                    await subscription.unsubscribe()
                    tried[right, subject] = (right, subject.lower())
                else:
                    await opened.client.publish(
                        subject.replace(">", "0"),
                        NO_REQUEST if subject.startswith("$JS.") else b"",
                        headers=NO_STREAM,
                    )
            # The server has answered everything before.
            await opened.call(opened.client.flush(int(API_SECONDS)))
    except NatsLost as lost:
        raise lost.at(address.shown) from None
    return frozenset(right for right, as_sent in tried.items() if as_sent not in forbidden)
