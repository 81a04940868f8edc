"""Turns rows of a store into the facts that explain why a job waits. Pure."""

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
"""How many of a label's last jobs predict how long the next ones take."""
HOLDERS: Final = 1000
MAX_JOBS_READ: Final = 64
"""How many other jobs are read to predict when a blocked job may start; with more there is no prediction."""

IN_LINE: Final = frozenset({JobState.WAITING, JobState.BACKOFF})
"""States in which a job waits for a slot, now or later."""


def planning_facts(run: DatabaseRow, now: float, workers: Sequence[WorkerView]) -> WaitFacts:
    """Return the facts about a run that has no jobs yet."""
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
    """Return the facts in the job's own row."""
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
        provisioning_since=_provisioning_since(job) if state is JobState.RUNNING else None,
        until=job["retry_at"] if state is JobState.BACKOFF else None,
        detail=job["detail"],
    )


def _provisioning_since(job: DatabaseRow) -> float | None:
    """Return since when the running attempt prepares; what an earlier one left counts for nothing."""
    since: float | None = job["provisioning_since"]
    return None if since is None or since < job["started_at"] else since


def group_of(job: DatabaseRow, run: DatabaseRow) -> tuple[bytes, str] | None:
    """Return the concurrency group that a blocked job waits for, and its member's id.

    The member is the job's run, or the job itself.
    """
    if run["group_key"] is not None and not run["group_acquired"]:
        return run["group_key"], run["run_id"]
    if job["group_key"] is not None and job["reason"] == Reason.CONCURRENCY_GROUP.value:
        return job["group_key"], job["job_id"]
    return None


def ahead_of(rows: Sequence[GroupMemberRow], holder: str, repository: str) -> tuple[str, Sequence[Holder]]:
    """Return the group's name, and its members ahead of `holder`."""
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
    """Return the job's needs that have not ended."""
    names = set(json.loads(job["needs"]))
    return [
        UnmetNeed(job_id=row["job_id"], name=row["name"], state=JobState(row["state"]))
        for row in siblings
        if row["name"] in names and not JobState(row["state"]).final
    ]


def holder_of(row: DatabaseRow) -> Holder:
    """Return a running job as the holder of a slot or group."""
    return Holder(
        run_id=row["run_id"],
        job_id=row["job_id"],
        name=row["name"],
        repository=row["repository"],
        worker_id=row["worker_id"],
        started_at=row["started_at"],
    )


def samples_of(rows: Iterable[DatabaseRow]) -> Sequence[Sample]:
    """Return how long the jobs of these rows ran."""
    return [Sample(repository=row["repository"], seconds=max(0.0, row["seconds"])) for row in rows]


def throttle_keys(facts: WaitFacts) -> Sequence[BucketKey]:
    """Return the rate buckets that the job's start would take from."""
    return (BucketKey(BucketScope.LABEL, facts.runs_on), BucketKey(BucketScope.REPOSITORY, facts.repository))


def exclusions_for(starts: StartBudget, facts: WaitFacts) -> ClaimExclusions:
    """Return the other repositories and owners that are at their cap or quota.

    Their jobs delay no others. Those at a rate limit are not included: they may start again soon.
    """
    limits = replace(starts.limits, rates=StartRates())
    others = exclusions_of(replace(starts, limits=limits).all_remaining())
    return ClaimExclusions(
        repositories=others.repositories - {facts.repository}, owners=others.owners - {facts.owner}
    )


def owner_starts_of_hour(starts: StartBudget, owner: str) -> OwnerStartsOfHour | None:
    """Return the owner's starts in the last hour; None without a quota."""
    quota = starts.limits.quotas.starts_per_hour.cap(owner) if owner else None
    return None if quota is None else OwnerStartsOfHour(quota=quota, started=starts.started.get(owner, ()))
