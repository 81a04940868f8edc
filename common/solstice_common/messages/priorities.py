"""Priority classes in messages: a field of the body, and a number beside it. Pure."""

import json
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from solstice_common.messages import Priority

PRIORITY_NUMBERS: Final[Mapping[Priority, int]] = MappingProxyType(
    {Priority.CRITICAL: 9, Priority.HIGH: 7, Priority.DEFAULT: 4, Priority.LOW: 1}
)
"""AMQP's `priority` of each class, shown on the management page; quorum queues serve those above 4 first."""
_BY_NAME: Final[Mapping[str, Priority]] = MappingProxyType({each.value: each for each in Priority})


def named_class(value: object) -> Priority | None:
    """Return the class of that name; None for anything else."""
    return _BY_NAME.get(value) if isinstance(value, str) else None


def class_in(body: bytes) -> Priority | None:
    """The class that a body names; None where it names none, or cannot be read."""
    with suppress(ValueError, RecursionError):
        fields = json.loads(body)
        if isinstance(fields, dict):
            return named_class(fields.get("priority"))
    return None


def numbered_class(number: int | None) -> Priority | None:
    """The most urgent class that a message's number reaches; None for 0 and for none."""
    return next((each for each, least in PRIORITY_NUMBERS.items() if (number or 0) >= least), None)
