"""The verdicts on a delivery: ack, retry, refuse.

Handlers return them as values; `Consumer.settle` alone carries them out.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from solstice_common.errors import InvalidReason
from solstice_common.runtime.backoff import backoff_seconds

RETRY_BASE_SECONDS: Final = 0.2
RETRY_CAP_SECONDS: Final = 60.0
MAX_DELIVERIES: Final = 20
"""After so many deliveries without a verdict a message is poison, as with the default limit of RabbitMQ."""


RefuseReason = (
    InvalidReason
    | Literal[
        "internal_error",
        "no_repository",
        "not_before_too_far",
        "too_many_deliveries",
        "unknown_source",
        "unreadable_head",
    ]
)


@dataclass(frozen=True, slots=True)
class Ack:
    """Ack: we have taken responsibility, and the broker may forget the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry: the world was wrong (a database away).

    The broker keeps the message and delivers it again.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse: the message is wrong and always will be.

    It goes to the dead-letter exchange with this reason.

    `reason` is one word of a closed list; `detail` is a sentence for the person who reads the dead letter.
    """

    reason: RefuseReason | StrEnum
    """A list of another room is an enum of its own, such as `signing.jws.SignatureReason`."""
    detail: str


Verdict = Ack | Retry | Refuse


def unreadable(error: Exception) -> Refuse:
    """Return the refusal of a delivery that triggered a bug."""
    return Refuse(reason="internal_error", detail=f"{type(error).__name__}: {error}"[:1000])


def retry_seconds(earlier_deliveries: int, rng: random.Random) -> float:
    """Return how long a retried delivery waits before it comes again; longer each time."""
    return backoff_seconds(
        earlier_deliveries, rng=rng, base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS
    )
