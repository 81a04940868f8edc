"""What to tell the broker about a delivery: decided as a value, carried out in one place (`Consumer.settle`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ack:
    """We have taken responsibility; the broker may forget the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The world was wrong (a database away): the broker keeps the message and delivers it again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The message is wrong and always will be: it goes to the dead-letter exchange with this reason.

    `reason` is one word of a closed list; `detail` is a sentence for the person who reads the dead letter.
    """

    reason: str
    detail: str


Verdict = Ack | Retry | Refuse
