"""The states of jobs and runs, as messages, APIs and stores name them. Pure."""

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """The states of a job."""

    BLOCKED = "blocked"
    """Waits for the jobs it `needs`."""
    WAITING = "waiting"
    """Could start as soon as a slot of its label is free."""
    BACKOFF = "backoff"
    """Failed for a reason outside the job; waits until `retry_at`."""
    APPROVAL = "approval"
    """Waits until a maintainer approves its run."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """A step ended with a non-zero exit code."""
    ERRORED = "errored"
    """The orchestrators could not run it within its attempts, or its workflow is wrong."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    """A job that it needs did not succeed."""

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def started(self) -> bool:
        """Whether some attempt may have written a log; a skipped job never ran."""
        return self not in NEVER_STARTED


class RunState(StrEnum):
    """The states of a run."""

    DELAYED = "delayed"
    """Accepted and stored; planned when its time comes."""
    PLANNING = "planning"
    """Accepted and stored; its workflow has not been read yet."""
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        return self.value in FINAL


FINAL: Final = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.ERRORED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.SKIPPED,
    }
)
"""The final states of jobs; a run ends in the state of the same name."""
NEVER_STARTED: Final = frozenset(
    {JobState.BLOCKED, JobState.WAITING, JobState.BACKOFF, JobState.APPROVAL, JobState.SKIPPED}
)
