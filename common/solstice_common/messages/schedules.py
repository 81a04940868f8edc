"""Names the policies of a schedule for missed and overlapping ticks. Pure.

The API and the command use these names.
"""

from enum import StrEnum


class Missed(StrEnum):
    """What happens to ticks during which no orchestrator ran."""

    ONCE = "once"
    """One run makes up for all of them."""
    SKIP = "skip"
    """They are recorded, and not made up for."""


class Overlap(StrEnum):
    """What happens to a tick while the schedule's last run has not ended."""

    QUEUE = "queue"
    """It starts one more run."""
    SKIP = "skip"
    """It is recorded, and does not fire."""
