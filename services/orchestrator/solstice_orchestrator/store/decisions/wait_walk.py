"""Finds why a job waits, through its needs and the group ahead of it. Pure.

A walk yields each load that it needs as a value and is sent what was loaded, so that a store only loads.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.queue_times.waits import COUNTED, Holder, WaitFacts
from solstice_orchestrator.scheduling.order import ClaimExclusions, overdue
from solstice_orchestrator.scheduling.starts import StartBudget
from solstice_orchestrator.store.decisions.supersede import GroupMemberRow
from solstice_orchestrator.store.decisions.wait_facts import (
    HOLDERS,
    IN_LINE,
    MAX_JOBS_READ,
    RECENT,
    ahead_of,
    exclusions_for,
    group_of,
    holder_of,
    job_facts,
    needs_of,
    owner_starts_of_hour,
    samples_of,
    throttle_keys,
)
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.records.rows import DatabaseRow


class WaitQuery(Enum):
    """Loads rows; beside each, its values."""

    JOB = auto()
    """Its id: the row of a job, if there is one."""
    RUN = auto()
    """Its id: the row of a run, if there is one."""
    JOBS_OF_RUN = auto()
    """The run's id: all its jobs, in their order."""
    UNFINISHED_JOBS = auto()
    """The run's id, and how many."""
    RECENT = auto()
    """A label, and how many: the repositories and `seconds` of the jobs that ended last."""
    RUNNING_OF_REPOSITORY = auto()
    """A repository, and how many: its running jobs, the oldest first."""
    RUNNING_OF_OWNER = auto()
    RUNNING_OF_LABEL = auto()


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Load all rows of a query."""

    query: WaitQuery
    values: Sequence[str | int]


@dataclass(frozen=True, slots=True)
class LoadNow:
    """Load the time of the store's clock."""


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """Load the members that hold a concurrency group or ask for it."""

    group: bytes


@dataclass(frozen=True, slots=True)
class LoadBudget:
    """Load the budget of starts."""


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """Count the jobs ahead of one: `jobs`, `own` (of its repository) and `owned`."""

    job: DatabaseRow
    facts: WaitFacts
    others: ClaimExclusions
    """Repositories and owners whose jobs are not ahead."""
    is_late: bool
    """The job has waited so long that only older ones are ahead."""


@dataclass(frozen=True, slots=True)
class LoadWorkers:
    """Load all workers."""


Load = LoadRows | LoadNow | LoadGroup | LoadBudget | LoadAhead | LoadWorkers
WaitWalk = Generator[Load, Any, WaitFacts | None]
_Seen = dict[str, WaitFacts | None]


def waiting(job_id: str, rules: StoreRules, seen: _Seen | None = None) -> WaitWalk:
    """Return the facts about one job.

    `seen` collects the jobs that were read on the way to a blocked one.
    """
    job = yield from _row(WaitQuery.JOB, job_id)
    if job is None:
        return None
    facts = job_facts(job, (yield LoadNow()))
    if facts.state is JobState.BLOCKED:
        return (yield from _blocked(job, facts, rules, {} if seen is None else seen))
    if facts.state in IN_LINE:
        return (yield from _in_line(job, facts, rules))
    if seen is not None and facts.state is JobState.RUNNING:
        return replace(facts, recent=(yield from _recent(facts.runs_on)))
    return facts


def _blocked(
    job: DatabaseRow, facts: WaitFacts, rules: StoreRules, seen: _Seen
) -> Generator[Load, Any, WaitFacts]:
    facts = replace(facts, recent=(yield from _recent(facts.runs_on)))
    run = yield from _row(WaitQuery.RUN, facts.run_id)
    membership = None if run is None else group_of(job, run)
    if membership is not None:
        group, holder = membership
        rows: Sequence[GroupMemberRow] = yield LoadGroup(group)
        name, ahead = ahead_of(rows, holder, facts.repository)
        jobs = (yield from _jobs_of(ahead[0])) if ahead else ()
        others = yield from _others(jobs, rules, seen)
        return replace(facts, group=name, group_ahead=ahead, group_jobs=others)
    needs = needs_of(job, (yield from _rows(WaitQuery.JOBS_OF_RUN, facts.run_id)))
    others = yield from _others([need.job_id for need in needs], rules, seen)
    return replace(facts, needs=[replace(need, facts=each) for need, each in zip(needs, others, strict=True)])


def _others(
    job_ids: Sequence[str], rules: StoreRules, seen: _Seen
) -> Generator[Load, Any, Sequence[WaitFacts | None]]:
    """Return the facts about these jobs; each is read once, at most MAX_JOBS_READ in all."""
    facts_of_others: list[WaitFacts | None] = []
    for job_id in job_ids:
        if job_id not in seen and len(seen) < MAX_JOBS_READ:
            seen[job_id] = None
            seen[job_id] = yield from waiting(job_id, rules, seen)
        facts_of_others.append(seen.get(job_id))
    return facts_of_others


def _jobs_of(holder: Holder) -> Generator[Load, Any, Sequence[str]]:
    """Return the unfinished jobs of a group's holder."""
    if holder.job_id is not None:
        return (holder.job_id,)
    rows = yield from _rows(WaitQuery.UNFINISHED_JOBS, holder.run_id, MAX_JOBS_READ + 1)
    return [row["job_id"] for row in rows]


def _recent(label: str) -> Generator[Load, Any, Sequence[Sample]]:
    return samples_of((yield from _rows(WaitQuery.RECENT, label, RECENT)))


def _in_line(job: DatabaseRow, facts: WaitFacts, rules: StoreRules) -> Generator[Load, Any, WaitFacts]:
    cap = rules.limits.caps.cap(facts.repository)
    owner_cap = rules.limits.quotas.slots.cap(facts.owner) if facts.owner else None
    starts: StartBudget = yield LoadBudget()
    is_late = facts.state is JobState.WAITING and overdue(facts.since, facts.now, rules.max_wait_seconds)
    ahead: DatabaseRow = yield LoadAhead(job, facts, exclusions_for(starts, facts), is_late)
    return replace(
        facts,
        ahead=min(ahead["jobs"], COUNTED),
        ahead_of_repository=ahead["own"] or 0,
        ahead_of_owner=ahead["owned"] or 0,
        cap=cap,
        running_of_repository=()
        if cap is None
        else (yield from _running(WaitQuery.RUNNING_OF_REPOSITORY, facts.repository)),
        owner_cap=owner_cap,
        running_of_owner=()
        if owner_cap is None
        else (yield from _running(WaitQuery.RUNNING_OF_OWNER, facts.owner)),
        owner_hour=owner_starts_of_hour(starts, facts.owner),
        running=(yield from _running(WaitQuery.RUNNING_OF_LABEL, facts.runs_on)),
        workers=(yield LoadWorkers()),
        throttles=starts.throttles(throttle_keys(facts)),
        recent=(yield from _recent(facts.runs_on)),
    )


def _running(query: WaitQuery, value: str) -> Generator[Load, Any, Sequence[Holder]]:
    rows = yield from _rows(query, value, HOLDERS)
    return [holder_of(row) for row in rows]


def _rows(query: WaitQuery, *values: str | int) -> Generator[Load, Any, Sequence[DatabaseRow]]:
    rows: Sequence[DatabaseRow] = yield LoadRows(query, values)
    return rows


def _row(query: WaitQuery, value: str) -> Generator[Load, Any, DatabaseRow | None]:
    rows = yield from _rows(query, value)
    return rows[0] if rows else None
