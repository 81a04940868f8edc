"""Gives runs to planning in the SQLite store, and takes them back."""

import json
from collections.abc import Collection, Sequence
from typing import Final

import orjson

from solstice_common.messages import stored_request
from solstice_orchestrator.domain.jobs import RunSpec
from solstice_orchestrator.store.decisions.plan import BEGUN_AT_ONCE, DecidePlan, begin
from solstice_orchestrator.store.decisions.supersede import runs_to_load
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.sqlite.supersede import ref_history, rerun_scope
from solstice_orchestrator.store.sqlite.tables import worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction, change_runs
from solstice_orchestrator.superseding.push_order import OrderQuestion

# The rows as one JSON text: Python's module releases the interpreter lock once per row it fetches, and must take it
# back from a busy event loop each time.
_TO_PLAN: Final = (
    "SELECT json_group_array(json_array(age, run_id, plan_attempt, CAST(body AS TEXT), rerun_of IS NOT NULL))"
    " FROM (SELECT age, run_id, plan_attempt, body, rerun_of FROM runs INDEXED BY runs_to_plan"
    " JOIN requests USING (age) WHERE state = 'planning' AND plan_worker IS NULL AND plan_at <= ? ORDER BY age LIMIT ?)"
)


def claim_planning(
    transaction: SqliteTransaction, worker_id: str, limit: int
) -> Sequence[PlanningTask] | None:
    """Claim runs that wait to be planned, oldest first; None: delayed runs must begin before."""
    return None if _due(transaction, 1) else _claim(transaction, worker_id, limit)


def begin_and_claim(transaction: SqliteTransaction, worker_id: str, limit: int) -> Sequence[PlanningTask]:
    """Move delayed runs whose time has come to PLANNING, and claim."""
    change_runs(transaction, _due(transaction, BEGUN_AT_ONCE), begin)
    return _claim(transaction, worker_id, limit)


def _claim(transaction: SqliteTransaction, worker_id: str, limit: int) -> Sequence[PlanningTask]:
    if not worker_table.takes_jobs(transaction.connection, worker_id, transaction.now):
        return []
    (listed,) = transaction.connection.execute(_TO_PLAN, (transaction.now, limit)).fetchone()
    rows = orjson.loads(listed)
    if not rows:
        return []
    worker_table.record_claim(
        transaction.connection, worker_id, transaction.now, transaction.rules.lease_seconds
    )
    transaction.connection.execute(
        "UPDATE runs SET plan_worker = ?, plan_since = ?, plan_attempt = plan_attempt + 1"
        " WHERE age IN (SELECT value FROM json_each(?))",
        (worker_id, transaction.now, json.dumps([row[0] for row in rows])),
    )
    return [
        PlanningTask(
            run_id=run_id,
            attempt=attempt + 1,
            request=stored_request(request.encode()),
            is_rerun=bool(is_rerun),
        )
        for _, run_id, attempt, request, is_rerun in rows
    ]


def _due(transaction: SqliteTransaction, limit: int) -> Sequence[str]:
    due = transaction.connection.execute(
        "SELECT run_id FROM runs INDEXED BY runs_delayed WHERE state = 'delayed' AND plan_at <= ?"
        " ORDER BY plan_at LIMIT ?",
        (transaction.now, limit),
    )
    return [row["run_id"] for row in due.fetchall()]


def take_back_planning(transaction: SqliteTransaction, worker_id: str, claimed: Collection[str]) -> None:
    """Release the worker's planning, except for the runs in `claimed`."""
    transaction.connection.execute(
        "UPDATE runs SET plan_worker = NULL, plan_since = NULL WHERE state = 'planning' AND plan_worker = ?"
        " AND run_id NOT IN (SELECT value FROM json_each(?))",
        (worker_id, json.dumps(list(claimed))),
    )


def plan_run(
    transaction: SqliteTransaction, task: PlanningTask, run: RunSpec, decide: DecidePlan
) -> bool | OrderQuestion:
    """Load the run with those that it may supersede, and write what is decided."""
    history = ref_history(transaction, task.request)
    loaded = runs_to_load(
        task.request, history.open_runs, transaction.rules.supersede, requested=run.supersede
    )
    scope = rerun_scope(transaction, task.run_id)
    run_ids = [task.run_id, *(each.run_id for each in loaded)]
    return change_runs(transaction, run_ids, lambda unit: decide(unit, history, scope))
