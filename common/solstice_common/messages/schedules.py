"""What a schedule may say about missed and overlapping ticks. Pure.

The API and the command use these names.
"""

from enum import StrEnum


class Missed(StrEnum):
    """What becomes of ticks for which no orchestrator was there."""

    ONCE = "once"
    """However many they are, one run makes up for them."""
    SKIP = "skip"
    """They are recorded, and not made up for."""


class Overlap(StrEnum):
    """What becomes of a tick while the schedule's last run has not ended."""

    QUEUE = "queue"
    """It is one more run."""
    SKIP = "skip"
    """It is recorded, and does not fire."""
