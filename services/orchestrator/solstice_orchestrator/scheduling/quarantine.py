"""How long a worker on which the world keeps going wrong is left without new jobs, and which it tries first then. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.order import ClaimExclusions

COUNTED_REASONS: Final = frozenset({Reason.PROVISION_FAILED, Reason.MACHINE_FAILED, Reason.EXECUTOR_FAILED})
"""Ends that may be the worker's fault: what it needs to run a job was not there."""

UNCOUNTED_REASONS: Final = frozenset(
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
_PROVES_NOTHING: Final = COUNTED_REASONS | UNCOUNTED_REASONS

FAILURES_IN_A_ROW: Final = 3
FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 3600.0


OTHERS_FIRST_SECONDS: Final = 5.0
"""After a quarantine, jobs of other repositories alone: what a quarantined worker did not plan may be planned by then."""
MAX_CAUSES: Final = 16
"""So many distinct failures in a row make the longest quarantine; of more none has to be known."""


class Cause(NamedTuple):
    """The job whose attempt failed: at fault itself, unless others fail too."""

    repository: str
    name: str
    """Jobs of one name in one repository are one cause, however often they are pushed or run again."""
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """What is remembered of a worker's health."""

    failures: int = 0
    """Ends in `COUNTED_REASONS`, one after the other, by distinct cause."""
    quarantined_until: float | None = None
    causes: tuple[Cause, ...] = ()
    """Of these failures; each once, the latest last."""


def after_end(record: HealthRecord, outcome: Outcome, cause: Cause, now: float) -> HealthRecord:
    """The record once an attempt of the worker at the job `cause` has ended so.

    From the third distinct failure in a row on, each begins a quarantine, twice as long as the one before, up to an
    hour. A job that fails again is no further failure: what it breaks need not be broken for others. It begins another
    quarantine of the same length at the most. What MACHINE_FAILED says comes from the machine alone, and always counts.
    What fails during a quarantine began before it: it is the same trouble, and does not count again. An end by the job
    itself, good or bad, proves the worker able and clears the count; a quarantine that has begun runs its time.
    """
    if outcome.reason in COUNTED_REASONS:
        if quarantined(record, now):
            return record
        others = tuple(each for each in record.causes if each[:2] != cause[:2])
        is_further = len(others) == len(record.causes) or outcome.reason is Reason.MACHINE_FAILED
        failures = record.failures + is_further
        pause = quarantine_seconds(failures)
        return HealthRecord(
            failures=failures,
            quarantined_until=None if pause is None else now + pause,
            causes=(*others, cause)[-MAX_CAUSES:],
        )
    return replace(record, failures=0, causes=()) if proves_able(outcome) else record


def claim_rounds(record: HealthRecord, now: float) -> Sequence[ClaimExclusions]:
    """What a claim passes over in each of its rounds, until no slot is free.

    A worker that has not been proven able since its quarantine takes jobs of other repositories first, a little later
    other jobs, and only then those whose failures led to it: if these alone are at fault, the others prove it.
    """
    if record.failures < FAILURES_IN_A_ROW or not record.causes:
        return (ClaimExclusions(),)
    other_repositories = ClaimExclusions(repositories=frozenset(cause.repository for cause in record.causes))
    if record.quarantined_until is not None and now < record.quarantined_until + OTHERS_FIRST_SECONDS:
        return (other_repositories,)
    other_jobs = ClaimExclusions(jobs=frozenset(cause.job_id for cause in record.causes))
    return (other_repositories, other_jobs, ClaimExclusions())


def proves_able(outcome: Outcome) -> bool:
    """Whether the job itself decided how it ended, so that the worker had all it needed."""
    return outcome.reason not in _PROVES_NOTHING and outcome.state is not JobState.CANCELLED


def quarantine_seconds(failures: int) -> float | None:
    """How long after that many distinct failures in a row; None while they are too few."""
    if failures < FAILURES_IN_A_ROW:
        return None
    # Bounded before it is raised: a float overflows after some thousand failures.
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - FAILURES_IN_A_ROW, 64))


def quarantined(record: HealthRecord, now: float) -> bool:
    """Whether it gets no jobs now."""
    return record.quarantined_until is not None and now < record.quarantined_until
