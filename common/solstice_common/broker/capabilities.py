"""Declares what a broker promises beyond the contract of all brokers. Pure.

`docs/reference/brokers.md` shows these declarations as a table, `/readyz` names what a server lacks.
"""

from dataclasses import dataclass
from enum import StrEnum


class Certainty(StrEnum):
    """Whether something is true, as far as that can be known."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class DelayedRetry(StrEnum):
    """Where a retried delivery waits for its backoff."""

    AT_ONCE = "at once"
    """Nowhere: the broker requeues it at once."""
    HELD = "held"
    """In the consumer that retried it."""
    NATIVE = "native"
    """In the broker."""


class QueueMeasure(StrEnum):
    """A measure of a queue that not every broker knows; `QueueDepth` has its value."""

    PENDING = "delivered and not settled"
    OLDEST = "age of the oldest"
    LEASE = "rest of the first lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one broker promises, as far as its adapter knows now."""

    transport: str
    """The broker's name in logs, labels and pages."""
    durable_on_confirm: Certainty
    """Whether a confirmed message survives the loss of power. Never YES while the health says `degraded`."""
    durable_when: str
    """The condition for that, in words."""
    failover_safe: bool | None
    """Whether another server takes over without losing what was confirmed; None for a broker without servers."""
    delayed_retry: DelayedRetry
    priorities: Certainty
    """Whether a message's priority changes the order of delivery."""
    max_message_bytes: int | None
    """The largest body that every such broker takes; None without a limit of its own."""
    dedupe_window_seconds: float
    """How long the broker recognises that the relay repeats a message; 0: never."""
    counts_interruptions: Certainty
    """Whether a delivery that was returned unsettled raises the count that makes a message poison."""
    atomic_dead_letter: bool
    """Whether a refused message moves to its dead-letter queue in one step."""
    atomic_group: bool
    """Whether the messages of one publish call are stored all together or not at all."""
    queue_measures: tuple[QueueMeasure, ...]
    """What it tells about a queue, beside its ready messages and consumers."""
    backpressure: str
    """What makes the broker take no more messages."""
