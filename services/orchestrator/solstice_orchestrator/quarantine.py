"""How long a worker on which the world keeps going wrong is left without new jobs. Pure."""

from dataclasses import dataclass, replace
from typing import Final

from solstice_orchestrator.jobs import JobState, Outcome, Reason

COUNTED: Final = frozenset({Reason.PROVISION_FAILED, Reason.MACHINE_FAILED, Reason.EXECUTOR_FAILED})
"""Ends that may be the worker's fault: what it needs to run a job was not there."""

SILENT: Final = frozenset(
    {
        Reason.RELEASED,
        Reason.AGENT_LOST,
        Reason.LEASE_EXPIRED,
        Reason.CHECKOUT_FAILED,
        Reason.COMMIT_NOT_FOUND,
        Reason.COMMIT_UNUSABLE,
        Reason.HOST_AWAY,
    }
)
"""Ends that say nothing of whether jobs can run there."""
_PROVES_NOTHING: Final = COUNTED | SILENT

FAILURES_IN_A_ROW: Final = 3
FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is remembered of a worker's health."""

    failures: int = 0
    """Ends in `COUNTED`, one after the other."""
    quarantined_until: float | None = None


def after_end(record: Record, outcome: Outcome, now: float) -> Record:
    """The record once an attempt of the worker has ended so.

    From the third failure in a row on, each begins a quarantine, twice as long as the one before, up to an hour. What
    fails during a quarantine began before it: it is the same trouble, and does not count again. An end by the job
    itself, good or bad, proves the worker able and clears the count; a quarantine that has begun runs its time.
    """
    if outcome.reason in COUNTED:
        if quarantined(record, now):
            return record
        failures = record.failures + 1
        pause = quarantine_seconds(failures)
        return Record(failures=failures, quarantined_until=None if pause is None else now + pause)
    return replace(record, failures=0) if proves_able(outcome) else record


def proves_able(outcome: Outcome) -> bool:
    """Whether the job itself decided how it ended, so that the worker had all it needed."""
    return outcome.reason not in _PROVES_NOTHING and outcome.state is not JobState.CANCELLED


def quarantine_seconds(failures: int) -> float | None:
    """How long after that many failures in a row; None while they are too few."""
    if failures < FAILURES_IN_A_ROW:
        return None
    # Bounded before it is raised: a float overflows after some thousand failures.
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - FAILURES_IN_A_ROW, 64))


def quarantined(record: Record, now: float) -> bool:
    """Whether it gets no jobs now."""
    return record.quarantined_until is not None and now < record.quarantined_until
