"""Chooses the headers of a dead letter: those that AMQP can carry, within one frame. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from solstice_common.broker.rabbitmq.received_properties import encoded_size, publishable

RESERVED_BYTES: Final = 12 + 2 + 4 + 1 + 1 + 8 + 7 * 256
"""Bytes of everything in a dead letter's content header except the headers."""
OWN_PREFIX: Final = "x-solstice-"
_DETAIL: Final = "x-solstice-detail"
_SHORT_DETAIL_CHARACTERS: Final = 256


def fitting(headers: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """The headers that can be published within `limit` bytes; the refusal's own go first."""
    chosen: dict[str, Any] = {}
    left = limit
    for name in sorted(headers, key=lambda name: not name.startswith(OWN_PREFIX)):
        value = publishable(headers[name])
        if value is None:
            continue
        size = encoded_size(name, value)
        if size > left and name == _DETAIL:
            value = str(value)[:_SHORT_DETAIL_CHARACTERS]
            size = encoded_size(name, value)
        if size <= left:
            chosen[name] = value
            left -= size
    return chosen
