"""Gives waiting jobs to workers. Pure.

`scheduling/order.py` decides which of them start.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.order import (
    Candidate,
    ClaimExclusions,
    RemainingStarts,
    assign,
    exclusions_of,
    remaining_after,
)
from solstice_orchestrator.scheduling.starts import StartBudget
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey, Claim
from solstice_orchestrator.store.records.rows import decode_spec

# Named here as in transitions.py: looking them up for each job takes as long as the rest of a move.
_BACKOFF: Final = JobState.BACKOFF
_RUNNING: Final = JobState.RUNNING
_RUN_RUNS: Final = RunState.RUNNING
_CLAIMED: Final = Reason.CLAIMED


class ChosenJobs:
    """The jobs that a claim has chosen so far, and what it may still read.

    A store reads jobs for `to_read()` without those `excluded`, adds the remaining starts of `new_senders`, and lets
    `choose` decide. How long it goes on reading is its own matter: rows may be locked in PostgreSQL.
    """

    def __init__(self, starts: StartBudget, free: Mapping[str, int], limit: int) -> None:
        self.limited = starts.limits.by_sender
        """Whether a repository or owner may have no more starts, so that reading again finds other jobs."""
        self.chosen: list[Candidate] = []
        self.excluded = exclusions_of(starts.all_remaining()) if self.limited else ClaimExclusions()
        self._left = starts.fit(free)
        self._limit = limit
        self._remaining = RemainingStarts()

    def to_read(self) -> Mapping[str, int]:
        """Return how many jobs to read for each label; empty when no more may start."""
        most = self._limit - len(self.chosen)
        return {label: min(slots, most) for label, slots in self._left.items() if slots > 0 and most > 0}

    def new_senders(self, candidates: Collection[Candidate]) -> tuple[Collection[str], Collection[str]]:
        """Return the repositories and owners of candidates whose remaining starts are not known yet."""
        return (
            {each.repository for each in candidates} - self._remaining.repositories.keys(),
            {each.owner for each in candidates} - self._remaining.owners.keys(),
        )

    def add_remaining(self, remaining: RemainingStarts) -> None:
        """Add the remaining starts of new senders."""
        self._remaining = self._remaining.joined_by(remaining)

    def choose(self, candidates: Collection[Candidate], *, overdue_before: float) -> Sequence[Candidate]:
        """Choose the candidates that start, and return them."""
        more = assign(
            candidates,
            self._left,
            self._limit - len(self.chosen),
            overdue_before=overdue_before,
            remaining=self._remaining,
        )
        self.chosen += more
        for candidate in more:
            self._left[candidate.label] -= 1
        self._remaining = remaining_after(self._remaining, more)
        self.excluded = self.excluded.and_(exclusions_of(self._remaining))
        return more


def assign_jobs(
    unit: UnitOfWork,
    worker_id: str,
    job_ids: Sequence[str],
    specs: Mapping[str, bytes],
    siblings: Mapping[str, Mapping[str, JobState]],
) -> Sequence[Claim]:
    """Give these waiting jobs to the worker, under a lease.

    `siblings`: the states of all jobs, by job id, of the runs that have not begun yet.
    """
    claims = [_assign_job(unit, worker_id, job_id, specs[job_id]) for job_id in job_ids]
    beginning = {
        claim.run_id: dict(siblings[claim.run_id])
        for claim in claims
        if unit.runs[claim.run_id].state is not _RUN_RUNS
    }
    for job in unit.jobs.values():
        if job.run_id in beginning:
            beginning[job.run_id][job.job_id] = job.state
    for run_id, states in beginning.items():
        unit.move_run(run_id, _RUN_RUNS, jobs=states.values())
    return claims


def end_backoffs(unit: UnitOfWork) -> None:
    """Move jobs whose backoff is over back to WAITING."""
    for job in list(unit.jobs.values()):
        if job.state is _BACKOFF and job.retry_at is not None and job.retry_at <= unit.now:
            unit.move(replace(job, retry_at=None), JobState.WAITING, Reason.BACKOFF_OVER)


def _assign_job(unit: UnitOfWork, worker_id: str, job_id: str, spec: bytes) -> Claim:
    job, now = unit.jobs[job_id], unit.now
    number, until = job.attempt + 1, now + unit.moment.rules.lease_seconds
    claimed = replace(
        job,
        attempt=number,
        worker_id=worker_id,
        lease_until=until,
        started_at=now,
        retry_at=None,
        exit_code=None,
        step=None,
        image="",
        provisioning_seconds=None,
    )
    unit.move(claimed, _RUNNING, _CLAIMED)
    return Claim(
        key=AttemptKey(job_id=job_id, number=number),
        run_id=job.run_id,
        spec=decode_spec(spec),
        body=unit.runs[job.run_id].request,
        lease_until=until,
        waiting_since=job.created_at if job.waiting_since is None else job.waiting_since,
    )
