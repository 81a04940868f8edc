"""Wraps a broker that adds signatures to requests and cancel requests."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Broker, Message, Published
from solstice_common.broker.wrapped_broker import WrappedBroker
from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.settings import SigningSettings
from solstice_common.signing.jws import sign
from solstice_common.signing.key_file import KeyFile, read_private
from solstice_common.signing.keys import SigningKey, parse_private

SIGNED_TYPES: Final = frozenset({JobRequestV1.VERSION, JobCancelV1.VERSION})
"""The types of messages that an orchestrator acts on."""


class SigningBroker(WrappedBroker):
    """A Broker that signs requests and cancel requests as it publishes them.

    `key` returns the current key.
    """

    def __init__(self, broker: Broker, key: Callable[[], SigningKey]) -> None:
        super().__init__(broker)
        self._key = key

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        return await self._broker.publish(list(signed(messages, self._key())))


def signed(messages: Iterable[Message], key: SigningKey) -> Iterable[Message]:
    """The messages in the same order; those of SIGNED_TYPES with their signatures."""
    for version, alike in groupby(messages, lambda message: message.type):
        group = list(alike)
        if version not in SIGNED_TYPES:
            yield from group
            continue
        for message, signature in zip(group, sign([each.body for each in group], version, key), strict=True):
            # First, since its reader has to pass all headers before it.
            headers = {SIGNATURE_HEADER: signature, **message.headers}
            headers[SIGNATURE_HEADER] = signature
            yield msgspec.structs.replace(message, headers=headers)


def signing(broker: Broker, settings: SigningSettings) -> Broker:
    """Return the broker, which signs if SIGNING_KEYS is set.

    ConfigurationError for keys that cannot be used.
    """
    text = settings.signing_keys.get_secret_value().strip()
    if not text:
        return broker
    if text.startswith("{"):
        try:
            inline = parse_private(text.encode())[0]
        except ValueError as error:
            raise ConfigurationError(f"SIGNING_KEYS: {error}") from None
        return SigningBroker(broker, lambda: inline)
    paths = [Path(name.strip()).expanduser() for name in text.split(",") if name.strip()]
    if not paths:
        raise ConfigurationError("SIGNING_KEYS: names no file")
    for number, path in enumerate(paths, start=1):
        if not os.path.lexists(path):
            # Its name is not repeated: it may be a key in quotes, or in another form.
            raise ConfigurationError(
                f"SIGNING_KEYS: file {number} of {len(paths)} cannot be found by this user: name files of 'solstice keys "
                "create', or give one key as JSON, which begins with {"
            )
    files = [KeyFile(path, read_private) for path in paths]
    return SigningBroker(broker, lambda: files[0].current()[0])
