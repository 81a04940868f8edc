"""Rows of a store to what `waiting.py` wants to know. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import orjson

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.queue_times.waits import Holder, OwnerStartsOfHour, UnmetNeed, WaitFacts
from solstice_orchestrator.scheduling.order import ClaimExclusions, exclusions_of
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, StartRates
from solstice_orchestrator.scheduling.starts import StartBudget
from solstice_orchestrator.scheduling.workers import WorkerView
from solstice_orchestrator.store.decisions.supersede import GroupMemberRow, members
from solstice_orchestrator.store.records.rows import DatabaseRow
from solstice_orchestrator.superseding.groups import ahead_in_group

RECENT: Final = 200
"""So many of a label's last jobs tell how long the next ones take."""
HOLDERS: Final = 1000
LOOKED_AT: Final = 64
"""So many other jobs are looked at to tell when one that is blocked may start; of more nobody can tell."""

IN_LINE: Final = frozenset({JobState.WAITING, JobState.BACKOFF})
"""States in which a job waits for a slot, now or later."""


def planning_facts(run: DatabaseRow, now: float, workers: Sequence[WorkerView]) -> WaitFacts:
    """About a run that has no jobs yet."""
    later = run["plan_worker"] is None and run["plan_at"] > now
    delayed = run["state"] == RunState.DELAYED.value
    return WaitFacts(
        now=now,
        run_id=run["run_id"],
        state=None,
        repository=run["repository"],
        since=run["created_at"],
        not_before=run["plan_at"] if later and delayed else None,
        until=run["plan_at"] if later and not delayed else None,
        detail=run["detail"],
        workers=workers,
    )


def job_facts(job: DatabaseRow, now: float) -> WaitFacts:
    """What the job's own row says."""
    state = JobState(job["state"])
    return WaitFacts(
        now=now,
        run_id=job["run_id"],
        job_id=job["job_id"],
        name=job["name"],
        state=state,
        reason=Reason(job["reason"]),
        repository=job["repository"],
        owner=job["owner"],
        runs_on=job["runs_on"],
        since=job["created_at"] if job["waiting_since"] is None else job["waiting_since"],
        started_at=job["started_at"] if state is JobState.RUNNING else None,
        until=job["retry_at"] if state is JobState.BACKOFF else None,
        detail=job["detail"],
    )


def group_of(job: DatabaseRow, run: DatabaseRow) -> tuple[bytes, str] | None:
    """The concurrency group that a blocked job waits for, and who of its members it is: its run, or itself."""
    if run["group_key"] is not None and not run["group_held"]:
        return run["group_key"], run["run_id"]
    if job["group_key"] is not None and job["reason"] == Reason.CONCURRENCY_GROUP.value:
        return job["group_key"], job["job_id"]
    return None


def ahead_of(rows: Sequence[GroupMemberRow], holder: str, repository: str) -> tuple[str, Sequence[Holder]]:
    """The name of the group, and who goes before `holder`."""
    by_holder = {row.job_id or row.run_id: row for row in rows}
    spec = orjson.loads(by_holder[holder].spec_json) if holder in by_holder else {}
    name = (spec.get("concurrency") or spec).get("group", "")
    return name, [
        Holder(
            run_id=each.run_id,
            job_id=by_holder[each.holder].job_id,
            name=orjson.loads(by_holder[each.holder].spec_json).get("name", ""),
            repository=repository,
        )
        for each in ahead_in_group(holder, members(rows))
    ]


def needs_of(job: DatabaseRow, siblings: Iterable[DatabaseRow]) -> Sequence[UnmetNeed]:
    """Of the jobs of its run those that it needs and that have not ended."""
    names = set(json.loads(job["needs"]))
    return [
        UnmetNeed(job_id=row["job_id"], name=row["name"], state=JobState(row["state"]))
        for row in siblings
        if row["name"] in names and not JobState(row["state"]).final
    ]


def holder_of(row: DatabaseRow) -> Holder:
    """A running job."""
    return Holder(
        run_id=row["run_id"],
        job_id=row["job_id"],
        name=row["name"],
        repository=row["repository"],
        worker_id=row["worker_id"],
        started_at=row["started_at"],
    )


def samples_of(rows: Iterable[DatabaseRow]) -> Sequence[Sample]:
    """How long jobs lasted."""
    return [Sample(repository=row["repository"], seconds=max(0.0, row["seconds"])) for row in rows]


def throttle_keys(facts: WaitFacts) -> Sequence[BucketKey]:
    """The buckets that its start would take from."""
    return (BucketKey(BucketScope.LABEL, facts.runs_on), BucketKey(BucketScope.REPOSITORY, facts.repository))


def exclusions_for(starts: StartBudget, facts: WaitFacts) -> ClaimExclusions:
    """Others that are at their cap or quota: their jobs hold up nobody. Those at a rate will not be for long."""
    limits = replace(starts.limits, rates=StartRates())
    others = exclusions_of(replace(starts, limits=limits).rooms())
    return ClaimExclusions(
        repositories=others.repositories - {facts.repository}, owners=others.owners - {facts.owner}
    )


def owner_starts_of_hour(starts: StartBudget, owner: str) -> OwnerStartsOfHour | None:
    """What the owner has started in the last hour, where that is counted."""
    quota = starts.limits.quotas.starts_per_hour.cap(owner) if owner else None
    return None if quota is None else OwnerStartsOfHour(quota=quota, started=starts.started.get(owner, ()))
