"""Gives waiting jobs to workers in the PostgreSQL store; a claim never waits for locks.

It skips rows that another claim has locked (`SKIP LOCKED`), and a run of several jobs that another transaction is
changing before the run has begun: that change ends with a notification, and then its jobs can be claimed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.order import (
    PRIORITY_ORDER,
    Candidate,
    ClaimExclusions,
)
from solstice_orchestrator.scheduling.quarantine import claim_rounds
from solstice_orchestrator.scheduling.starts import StartBudget
from solstice_orchestrator.scheduling.workers import WorkerEligibility, may_claim
from solstice_orchestrator.store.decisions.claim import ChosenJobs, assign_jobs, end_backoffs
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.postgresql.finish import SingleJobRun
from solstice_orchestrator.store.postgresql.tables import start_limits, worker_table
from solstice_orchestrator.store.postgresql.tables.columns import JOB, NOW, RUN
from solstice_orchestrator.store.postgresql.tables.transaction import (
    PostgreSQLTransaction,
    job_of,
    job_state,
    run_of,
    write,
)
from solstice_orchestrator.store.protocol import Claim
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.moment import Moment

if TYPE_CHECKING:
    import asyncpg


class ClaimResult(NamedTuple):
    """The claimed attempts, with the rows of runs that begin and end with one job."""

    claims: Sequence[Claim] = ()
    single_job_runs: Sequence[SingleJobRun] = ()
    """The claimed runs of one job that was never started before, with their new rows."""


@dataclass(slots=True)
class _LockedRows:
    """The rows that a claim has locked."""

    jobs: dict[str, Job] = field(default_factory=dict)
    specs: dict[str, bytes] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    siblings: dict[str, Mapping[str, JobState]] = field(default_factory=dict)
    single_job_runs: dict[str, None] = field(default_factory=dict)
    """Runs of one job that has never been started."""
    busy: set[str] = field(default_factory=set)
    """Jobs whose run another transaction is changing."""


async def claim(
    transaction: PostgreSQLTransaction, worker_id: str, free: Mapping[str, int], limit: int
) -> ClaimResult:
    """Give jobs to the worker under a lease, in dispatch order."""
    starts = await start_limits.lock_budget(
        transaction.connection, transaction.rules, transaction.test_now, free
    )
    selection = ChosenJobs(starts, free, limit)
    moment, locked = None, _LockedRows()
    # What the worker must skip is known only with the first rows.
    rounds: Sequence[ClaimExclusions] = (ClaimExclusions(),)
    while rounds and (to_read := selection.to_read()):
        excluded_ids = {candidate.job_id for candidate in selection.chosen} | locked.busy
        # All rounds happen at one moment: a backoff that ends meanwhile has not ended for this claim.
        now = transaction.test_now if moment is None else moment.now
        rows = await _candidates(
            transaction,
            worker_id,
            to_read,
            now=now,
            excluded=selection.excluded.and_(rounds[0]),
            excluded_ids=excluded_ids,
        )
        if moment is None:
            if not rows:
                break
            moment = transaction.moment(rows[0])
            rounds = await _rounds(transaction, worker_id, moment, rows)
            if rounds != (ClaimExclusions(),):
                continue
        await _add(transaction, locked, rows)
        candidates = [
            _candidate(job) for job in locked.jobs.values() if job.job_id not in excluded_ids | locked.busy
        ]
        if selection.limited:
            await _lock_senders(transaction, selection, starts, candidates)
        selection.choose(candidates, overdue_before=moment.now - transaction.rules.max_wait_seconds)
        # SQLite ends a round when nothing was chosen. Here other claims have locked rows and counts: each read may
        # find that a sender has no starts left, or a run that is busy, and then there may be more jobs behind it.
        if not rows or not (selection.limited or locked.busy - excluded_ids):
            rounds = rounds[1:]
    return (
        ClaimResult()
        if moment is None or not locked.jobs
        else await _assign(transaction, worker_id, moment, locked, selection.chosen, starts=starts)
    )


async def _assign(
    transaction: PostgreSQLTransaction,
    worker_id: str,
    moment: Moment,
    locked: _LockedRows,
    chosen: Sequence[Candidate],
    *,
    starts: StartBudget,
) -> ClaimResult:
    if locked.busy:
        # Several rounds may have taken a while, and a lease begins when it is given.
        moment = Moment(await transaction.now(), transaction.rules)
    ids = dict.fromkeys(candidate.job_id for candidate in chosen)
    concerned = [job for job in locked.jobs.values() if job.job_id in ids or job.state is JobState.BACKOFF]
    unit = UnitOfWork(moment, locked.runs.values(), concerned)
    end_backoffs(unit)
    claims = assign_jobs(unit, worker_id, tuple(ids), locked.specs, locked.siblings)
    changes = unit.changes()
    # These runs begin with their only job, whose row says so (`begun_with`): no need to lock and write the run's row.
    await write(
        transaction,
        replace(changes, runs=[run for run in changes.runs if run.run_id not in locked.single_job_runs]),
    )
    await start_limits.record_starts(transaction.connection, starts, chosen, moment.now)
    single_job_runs = [
        SingleJobRun(run := locked.runs[claim.run_id], unit.jobs[claim.key.job_id], unit.subject(run))
        for claim in claims
        if claim.run_id in locked.single_job_runs
    ]
    return ClaimResult(claims, single_job_runs)


async def _rounds(
    transaction: PostgreSQLTransaction, worker_id: str, moment: Moment, rows: Sequence["asyncpg.Record"]
) -> Sequence[ClaimExclusions]:
    """Return what the worker's claim skips in each of its rounds; none without jobs.

    A worker that gets jobs and was unknown, or seemed dead, becomes known.
    """
    row = rows[0]["worker"]
    worker = None if row is None else worker_table.decode_worker(row)
    eligibility = WorkerEligibility() if worker is None else worker.eligibility
    if not may_claim(eligibility, moment.now):
        return ()
    lease_seconds = moment.rules.lease_seconds
    # Its row is left alone where possible: the worker's own renewal may have locked it, and a claim never waits.
    if worker is None or worker.seen_at <= moment.now - lease_seconds or worker.ended_at is not None:
        await worker_table.record_claim(transaction.connection, worker_id, moment.now, lease_seconds)
    return claim_rounds(eligibility.record, moment.now)


async def _candidates(
    transaction: PostgreSQLTransaction,
    worker_id: str,
    to_read: Mapping[str, int],
    *,
    now: float | None,
    excluded: ClaimExclusions,
    excluded_ids: Collection[str],
) -> Sequence["asyncpg.Record"]:
    """Lock and return the first jobs of each label's queue, in its two orders.

    Jobs whose backoff is over are included. Each row has the worker, if it is known, and the run where it was never
    started and has this job alone.
    """
    owners = [list(excluded.owners)] if excluded.owners else []
    return await transaction.connection.fetch(
        _CANDIDATES_OF_OTHERS if owners else _CANDIDATES,
        list(to_read),
        list(to_read.values()),
        now,
        transaction.rules.max_wait_seconds,
        list(excluded.repositories),
        [*excluded_ids, *excluded.jobs],
        worker_id,
        *owners,
    )


_RUN_AT: Final = len(Job.__struct_fields__) + len(("spec", "now", "worker"))
"""Index of the run's first column in a row of `_CANDIDATES`."""
_LOCKED: Final = "FOR NO KEY UPDATE SKIP LOCKED"
_OTHERS: Final = "repository <> ALL($5::text[]) AND job_id <> ALL($6::text[])"


def _first_of_all(others: str) -> str:
    return f"""
WITH moment AS MATERIALIZED (SELECT coalesce($3::double precision, {NOW}) AS now),
queues AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::integer[]) AS queue (label, slots))
SELECT {JOB}, jobs.spec, moment.now, ({worker_table.ENCODED} WHERE worker_id = $7::text) AS worker, alone.*
FROM moment CROSS JOIN (
    (SELECT overdue.* FROM moment, queues, LATERAL (
        SELECT * FROM jobs WHERE state = 'waiting' AND runs_on = queues.label
            AND waiting_since < moment.now - $4::double precision AND {others}
        ORDER BY waiting_since LIMIT queues.slots {_LOCKED}) AS overdue)
    UNION ALL
    (SELECT in_order.* FROM queues, LATERAL (
        SELECT * FROM jobs WHERE state = 'waiting' AND runs_on = queues.label AND {others}
        ORDER BY priority, start_tag, job_id LIMIT queues.slots {_LOCKED}) AS in_order)
    UNION ALL
    (SELECT rested.* FROM moment, LATERAL (
        SELECT * FROM jobs WHERE state = 'backoff' AND retry_at <= moment.now AND {others}
        ORDER BY retry_at LIMIT 100 {_LOCKED}) AS rested)) AS jobs
LEFT JOIN LATERAL (
    SELECT {RUN} FROM runs JOIN requests USING (run_id)
    WHERE runs.run_id = jobs.run_id AND runs.state = 'waiting' AND runs.job_count = 1
) AS alone ON jobs.position = 0 AND jobs.attempt = 0
"""  # noqa: S608  made of constants


_CANDIDATES: Final = _first_of_all(_OTHERS)
_CANDIDATES_OF_OTHERS: Final = _first_of_all(f"{_OTHERS} AND owner <> ALL($8::text[])")
"""The usual claim skips no owner, so its query does not check owners."""

_RUNS: Final = f"""
SELECT {RUN}, NULL AS siblings FROM runs JOIN requests USING (run_id)
WHERE runs.run_id = ANY($1) AND runs.state = 'running'
UNION ALL
SELECT * FROM (
    SELECT {RUN}, ARRAY(
        SELECT ARRAY[jobs.job_id, jobs.state] FROM jobs WHERE jobs.run_id = runs.run_id ORDER BY position
    ) AS siblings
    FROM runs JOIN requests USING (run_id)
    WHERE runs.run_id = ANY($1) AND runs.state = 'waiting'
    FOR NO KEY UPDATE OF runs SKIP LOCKED) AS beginning
"""  # noqa: S608  made of constants


async def _add(
    transaction: PostgreSQLTransaction, locked: _LockedRows, rows: Sequence["asyncpg.Record"]
) -> None:
    """Add these rows of `_CANDIDATES`, and the runs of their jobs.

    A transaction that changes a run locks all its jobs first. So a run that came with its only job is unchanged since
    this job began to wait for its first start, and stays so while this claim holds the job. Other runs need a statement
    of their own, which sees what was committed before the jobs were locked. From then on no other transaction ends or
    restarts these runs either.
    """
    fresh = {}
    for row in rows:
        job = job_of(row)
        locked.specs[job.job_id] = row["spec"]
        fresh[job.job_id] = job
        if row[_RUN_AT] is not None:
            locked.runs[job.run_id] = run_of(row[_RUN_AT:])
            locked.siblings[job.run_id] = {job.job_id: job.state}
            locked.single_job_runs[job.run_id] = None
    others = {job.run_id for job in fresh.values()} - locked.single_job_runs.keys()
    for row in await transaction.connection.fetch(_RUNS, list(others)) if others else ():
        run = run_of(row)
        locked.runs[run.run_id] = run
        if row["siblings"]:
            locked.siblings[run.run_id] = {job_id: job_state(state) for job_id, state in row["siblings"]}
    for job in fresh.values():
        if job.run_id in locked.runs:
            locked.jobs[job.job_id] = job
        else:
            locked.busy.add(job.job_id)


async def _lock_senders(
    transaction: PostgreSQLTransaction,
    selection: ChosenJobs,
    starts: StartBudget,
    candidates: Sequence[Candidate],
) -> None:
    """Lock new repositories and owners, and add their remaining starts."""
    repositories, owners = selection.new_senders(candidates)
    if repositories or owners:
        remaining = await start_limits.remaining(transaction.connection, starts, repositories, owners)
        selection.add_remaining(remaining)


def _candidate(job: Job) -> Candidate:
    return Candidate(
        job_id=job.job_id,
        label=job.runs_on,
        priority=PRIORITY_ORDER[job.priority],
        age=int(job.job_id.replace("-", ""), 16),
        repository=job.repository,
        owner=job.owner,
        start_tag=job.start_tag,
        # A job that comes back from a backoff begins to wait now.
        waiting_since=math.inf
        if job.waiting_since is None or job.state is JobState.BACKOFF
        else job.waiting_since,
    )
