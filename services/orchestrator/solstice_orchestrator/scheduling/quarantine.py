"""How long a failing worker gets no jobs, and which it tries first afterwards. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.order import ClaimExclusions

COUNTED_REASONS: Final = frozenset({Reason.PROVISION_FAILED, Reason.MACHINE_FAILED, Reason.EXECUTOR_FAILED})
"""Ends that the worker may have caused: it lacked what a job needs."""

UNCOUNTED_REASONS: Final = frozenset(
    {
        Reason.RELEASED,
        Reason.AGENT_LOST,
        Reason.LEASE_EXPIRED,
        Reason.CHECKOUT_FAILED,
        Reason.ARTIFACT_UNAVAILABLE,
        Reason.COMMIT_NOT_FOUND,
        Reason.COMMIT_UNUSABLE,
        Reason.HOST_AWAY,
    }
)
"""Ends that do not show whether jobs can run there."""
_PROVES_NOTHING: Final = COUNTED_REASONS | UNCOUNTED_REASONS

FAILURES_IN_A_ROW: Final = 3
FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 3600.0


OTHERS_FIRST_SECONDS: Final = 5.0
"""How long after a quarantine only jobs of other repositories start.

What a quarantined worker did not plan may be planned by then.
"""
MAX_CAUSES: Final = 16
"""Causes kept: so many failures in a row give the longest quarantine."""


class QuarantineCause(NamedTuple):
    """The job whose attempt failed: taken as the cause unless other jobs fail too."""

    repository: str
    name: str
    """Jobs of one name in one repository are one cause, also across pushes and reruns."""
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """What the store keeps about a worker's health."""

    failures: int = 0
    """Ends in `COUNTED_REASONS` in a row, by distinct cause."""
    quarantined_until: float | None = None
    causes: tuple[QuarantineCause, ...] = ()
    """The causes of these failures; each once, the latest last."""


def after_end(record: HealthRecord, outcome: Outcome, cause: QuarantineCause, now: float) -> HealthRecord:
    """Return the record after an attempt at the job `cause` has ended on the worker.

    From the third distinct failure in a row on, each begins a quarantine, twice as long as the one before, up
    to an hour. A job that fails again is no further failure, since its problem may not concern other jobs; it
    begins another quarantine of the same length at most. MACHINE_FAILED comes from the machine alone, and
    always counts. A failure during a quarantine does not count again: its attempt began before. An end by the
    job itself, good or bad, proves that the worker can run jobs and clears the count; a quarantine that has
    begun runs its time.
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
    """Return the exclusions of each round of a claim, until no slot is free.

    After a quarantine, a worker that has not yet run a job properly takes jobs of other repositories first, a little
    later other jobs, and only then the jobs whose failures led to it: if these alone are at fault, the others prove it.
    """
    last = repositories_last(record)
    if not last:
        return (ClaimExclusions(),)
    other_repositories = ClaimExclusions(repositories=last)
    if others_alone_until(record, now) is not None:
        return (other_repositories,)
    other_jobs = ClaimExclusions(jobs=frozenset(cause.job_id for cause in record.causes))
    return (other_repositories, other_jobs, ClaimExclusions())


def repositories_last(record: HealthRecord) -> frozenset[str]:
    """The repositories whose jobs led to a quarantine, until another job has ended by itself."""
    if record.failures < FAILURES_IN_A_ROW:
        return frozenset()
    return frozenset(cause.repository for cause in record.causes)


def others_alone_until(record: HealthRecord, now: float) -> float | None:
    """Until when only jobs of other repositories start; None: there is no such time now."""
    if record.quarantined_until is None or not repositories_last(record):
        return None
    until = record.quarantined_until + OTHERS_FIRST_SECONDS
    return until if now < until else None


def proves_able(outcome: Outcome) -> bool:
    """Return whether the job itself caused its end, so that the worker lacked nothing."""
    return outcome.reason not in _PROVES_NOTHING and outcome.state is not JobState.CANCELLED


def quarantine_seconds(failures: int) -> float | None:
    """Seconds of quarantine after so many distinct failures in a row; None: too few."""
    if failures < FAILURES_IN_A_ROW:
        return None
    # Bounded before it is raised: a float overflows after some thousand failures.
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - FAILURES_IN_A_ROW, 64))


def quarantined(record: HealthRecord, now: float) -> bool:
    """Return whether the worker is in quarantine now."""
    return record.quarantined_until is not None and now < record.quarantined_until
