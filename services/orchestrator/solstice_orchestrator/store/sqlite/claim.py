"""Gives waiting jobs to workers in the SQLite store."""

import json
import math
from collections.abc import Collection, Mapping, Sequence

from solstice_common.messages.states import RunState
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
from solstice_orchestrator.store.protocol import Claim
from solstice_orchestrator.store.sqlite.tables import start_limits, worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import (
    JOB,
    JOB_STATES,
    RUN,
    SqliteTransaction,
    job_of,
    run_of,
    write,
)


def claim(
    transaction: SqliteTransaction, worker_id: str, free: Mapping[str, int], limit: int
) -> Sequence[Claim]:
    """Give jobs to the worker under a lease, in dispatch order."""
    worker = worker_table.find_worker(transaction.connection, worker_id)
    eligibility = WorkerEligibility() if worker is None else worker.eligibility
    if not may_claim(eligibility, transaction.now):
        return ()
    _end_backoffs(transaction)
    starts = start_limits.load_budget(transaction.connection, transaction.moment)
    candidates = _choose(transaction, starts, free, limit, claim_rounds(eligibility.record, transaction.now))
    if not candidates:
        return ()
    chosen = [candidate.job_id for candidate in candidates]
    start_limits.record_starts(transaction.connection, starts, candidates, transaction.now)
    worker_table.record_claim(
        transaction.connection, worker_id, transaction.now, transaction.rules.lease_seconds
    )
    rows = transaction.connection.execute(
        f"SELECT {JOB}, spec FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",  # noqa: S608  made of constants
        (json.dumps(chosen),),
    ).fetchall()
    unit = _load(transaction, [row[:-1] for row in rows])
    specs = {row["job_id"]: row["spec"] for row in rows}
    siblings = {
        run.run_id: {
            row["job_id"]: JOB_STATES[row["state"]]
            for row in transaction.connection.execute(
                "SELECT job_id, state FROM jobs WHERE run_id = ? ORDER BY position", (run.run_id,)
            )
        }
        for run in unit.runs.values()
        if run.state is not RunState.RUNNING
    }
    claims = assign_jobs(unit, worker_id, chosen, specs, siblings)
    write(transaction, unit.changes())
    return claims


def _end_backoffs(transaction: SqliteTransaction) -> None:
    rows = transaction.connection.execute(
        f"SELECT {JOB} FROM jobs WHERE state = 'backoff' AND retry_at <= ? ORDER BY retry_at, age",  # noqa: S608  made of constants
        (transaction.now,),
    ).fetchall()
    if rows:
        unit = _load(transaction, rows)
        end_backoffs(unit)
        write(transaction, unit.changes())


def _load(transaction: SqliteTransaction, jobs: Sequence[Sequence[object]]) -> UnitOfWork:
    """Load only these jobs, and their runs."""
    loaded = [job_of(row) for row in jobs]
    runs = transaction.connection.execute(
        f"SELECT {RUN} FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",  # noqa: S608  made of constants
        (json.dumps([job.run_id for job in loaded]),),
    )
    return UnitOfWork(transaction.moment, map(run_of, runs), loaded)


def _choose(
    transaction: SqliteTransaction,
    starts: StartBudget,
    free: Mapping[str, int],
    limit: int,
    rounds: Sequence[ClaimExclusions],
) -> Sequence[Candidate]:
    """Choose the jobs that start next.

    It reads again as long as repositories or owners without remaining starts kept other jobs from being seen.
    """
    selection = ChosenJobs(starts, free, limit)
    before = transaction.now - transaction.rules.max_wait_seconds
    for excluded in rounds:
        while to_read := selection.to_read():
            chosen = {candidate.job_id for candidate in selection.chosen}
            candidates = _candidates(transaction, to_read, before, selection.excluded.and_(excluded), chosen)
            if selection.limited:
                selection.add_remaining(starts.remaining(*selection.new_senders(candidates)))
            if not selection.choose(candidates, overdue_before=before) or not selection.limited:
                break
    return selection.chosen


def _candidates(
    transaction: SqliteTransaction,
    to_read: Mapping[str, int],
    overdue_before: float,
    excluded: ClaimExclusions,
    chosen: Collection[str],
) -> list[Candidate]:
    """Return the first jobs of each label's queue, as many as could start.

    Two indexes give them in their two orders.
    """
    # Conditions are added only when needed: the usual claim reads only the beginning of an index.
    others, excluded_ids = "", {*chosen, *excluded.jobs}
    if excluded.repositories or excluded.owners or excluded_ids:
        others = (
            " AND repository NOT IN (SELECT value FROM json_each(:repositories))"
            " AND owner NOT IN (SELECT value FROM json_each(:owners))"
            " AND job_id NOT IN (SELECT value FROM json_each(:taken))"
        )
    candidates: dict[str, Candidate] = {}
    for label, count in to_read.items():
        for condition, order in (
            (" AND waiting_since < :before", "waiting_since, age"),
            ("", "priority, start_tag, age"),
        ):
            rows = transaction.connection.execute(
                "SELECT job_id, priority, age, repository, owner, start_tag, waiting_since FROM jobs"  # noqa: S608  made of constants
                f" WHERE state = 'waiting' AND runs_on = :label{condition}{others} ORDER BY {order} LIMIT :count",
                {
                    "label": label,
                    "before": overdue_before,
                    "repositories": json.dumps(list(excluded.repositories)),
                    "owners": json.dumps(list(excluded.owners)),
                    "taken": json.dumps(list(excluded_ids)),
                    "count": count,
                },
            )
            for row in rows:
                candidates[row["job_id"]] = Candidate(
                    job_id=row["job_id"],
                    label=label,
                    priority=PRIORITY_ORDER[row["priority"]],
                    age=row["age"],
                    repository=row["repository"],
                    owner=row["owner"],
                    start_tag=row["start_tag"],
                    waiting_since=math.inf if row["waiting_since"] is None else row["waiting_since"],
                )
    return list(candidates.values())
