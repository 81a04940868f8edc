"""Pulls messages over one connection, never more than there is room for.

`fetch()` of nats-py leaves pull requests behind that receive messages, and loses some messages when it is
cancelled. So we send our own pull requests: they last, they send heartbeats while no message comes, and we
renew them when they end or fall silent.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from solstice_common.broker.jetstream.jetstream_names import DURABLE, stream_of
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsLost, described
from solstice_common.broker.links.resubscribing import SubscriptionEnded

PULL_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 12.0
"""Without a message or a heartbeat for this long, the server has forgotten our pull requests."""
_NANOSECONDS: Final = 1_000_000_000
PULL_BYTES: Final = 4 << 20
"""A pull request brings no more, unless one message alone may be larger.

A server disconnects a client for which more than 64 MiB wait (`max_pending`), as a batch of large messages would.
"""
HEAD_BYTES: Final = 64 * 1024
"""For the subjects, which count, too."""
_OVER: Final = frozenset({"404", "408"})
_FULL: Final = frozenset({"Message Size Exceeds MaxBytes", "Batch Completed"})
"""How a pull request with `max_bytes` ends: the first when the next message needs one of its own."""


class Puller:
    """A loop of pull requests for as many messages as `room` says; `arrived` gets each.

    Call `wake` after more room.
    """

    def __init__(
        self,
        connection: NatsConnection,
        queue: str,
        *,
        prefetch: int,
        room: Callable[[], int],
        arrived: Callable[[Msg], None],
    ) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream_of(queue)}.{DURABLE}"
        self._prefetch = prefetch
        self._room = room
        self._arrived = arrived
        self._inbox = connection.client.new_inbox()
        self._number = 0
        self._oldest = 1
        """The first pull request since the last silence; earlier ones are forgotten already."""
        self._requested = 0
        """How many messages all pull requests together may still bring: a message does not name its request."""
        self._wake = asyncio.Event()
        self._received_at = time.monotonic()
        self._over = ""

    @property
    def started(self) -> bool:
        """Whether it has asked for messages."""
        return self._number > 0

    def wake(self) -> None:
        """Look for room again."""
        self._wake.set()

    async def run(self) -> None:
        """Pull until cancelled, and then take the messages that are on their way.

        Raises NatsLost with the connection, SubscriptionEnded when there is nothing to pull from.
        """
        client = self._connection.client
        try:
            subscription = await client.subscribe(
                f"{self._inbox}.*", cb=self._received, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except nats.errors.Error as error:
            raise NatsLost(described(error)) from None
        try:
            while True:
                self._wake.clear()
                await self._pull()
                await self._changed()
        finally:
            if not self._connection.ended.done():
                # Not `unsubscribe`: messages that the server has sent already would be lost until their
                # AckWait ends.
                with suppress(nats.errors.Error, OSError):
                    await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py has no types here

    async def _pull(self) -> None:
        requested = self._room() - self._requested
        # Small pulls would cost almost one request per message; two at once may have twice the bytes.
        most_bytes = max(PULL_BYTES, self._connection.client.max_payload + HEAD_BYTES)
        at_once = self._prefetch // 2 if most_bytes == PULL_BYTES else self._prefetch
        if requested <= 0 or (self._requested and requested < at_once):
            return
        self._number += 1
        pull: dict[str, Any] = {
            "batch": requested,
            "max_bytes": most_bytes,
            "expires": int(PULL_SECONDS * _NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _NANOSECONDS),
        }
        if not self._requested:
            self._received_at = time.monotonic()
        self._requested += requested
        try:
            await self._connection.client.publish(
                self._subject, json.dumps(pull).encode(), reply=f"{self._inbox}.{self._number}"
            )
        except nats.errors.Error as error:
            raise NatsLost(described(error)) from None

    async def _changed(self) -> None:
        """Wait for room, the end of a pull, or silence."""
        waking = asyncio.ensure_future(self._wake.wait())
        silent_at = self._received_at + SILENCE_SECONDS
        try:
            either: set[asyncio.Future[Any]] = {waking, self._connection.ended}
            await asyncio.wait(
                either,
                timeout=max(0.0, silent_at - time.monotonic()) if self._requested else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waking.cancel()
        if self._connection.ended.done():
            raise NatsLost(self._connection.ended.result())
        if self._over:
            raise SubscriptionEnded(self._over)
        if self._requested and time.monotonic() >= self._received_at + SILENCE_SECONDS:
            self._requested, self._oldest = 0, self._number + 1

    async def _received(self, msg: Msg) -> None:
        self._received_at = time.monotonic()
        headers = msg.headers or {}
        status = headers.get("Status")
        if msg.reply.startswith("$JS.ACK."):
            self._requested = max(0, self._requested - 1)
            self._arrived(msg)
        elif status in _OVER or headers.get("Description") in _FULL:
            if int(msg.subject.rpartition(".")[2]) >= self._oldest:
                left = unfilled(headers)
                self._requested = 0 if left is None else max(0, self._requested - left)
        elif status is not None and status != "100":
            self._over = f"{status} {headers.get('Description', '')}".strip()
        self._wake.set()


def unfilled(headers: Mapping[str, str]) -> int | None:
    """How many messages an ended pull request did not bring, if its headers say so. Pure."""
    left = headers.get("Nats-Pending-Messages", "")
    return int(left) if left.isdecimal() else None
