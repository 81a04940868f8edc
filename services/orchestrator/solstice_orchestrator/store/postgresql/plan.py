"""Gives runs to planning in the PostgreSQL store, and takes them back."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from solstice_common.messages import stored_request
from solstice_orchestrator.domain.jobs import RunSpec
from solstice_orchestrator.domain.reruns import NOT_A_RERUN
from solstice_orchestrator.store.decisions.plan import BEGUN_AT_ONCE, DecidePlan, begin
from solstice_orchestrator.store.decisions.supersede import runs_to_load
from solstice_orchestrator.store.postgresql.supersede import ref_histories, rerun_scopes
from solstice_orchestrator.store.postgresql.tables import worker_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, change_runs
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.superseding.push_order import OrderQuestion


async def claim_planning(
    transaction: PostgreSQLTransaction, worker_id: str, limit: int
) -> Sequence[PlanningTask]:
    """Claim runs that wait to be planned, oldest first.

    Runs that another claim has locked are skipped.
    """
    now = await transaction.now()
    await _begin(transaction, now)
    if not await worker_table.takes_jobs(transaction.connection, worker_id, now):
        return []
    rows = await transaction.connection.fetch(
        "WITH taken AS MATERIALIZED (SELECT run_id FROM runs"
        " WHERE to_plan AND plan_at <= $1"
        " ORDER BY run_id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)"
        " UPDATE runs SET plan_worker = $3, plan_since = $1, plan_attempt = plan_attempt + 1"
        " FROM taken JOIN requests USING (run_id) WHERE runs.run_id = taken.run_id"
        " RETURNING runs.run_id, runs.plan_attempt, requests.body, requests.rerun_of",
        now,
        limit,
        worker_id,
    )
    if rows:
        await worker_table.record_claim(
            transaction.connection, worker_id, now, transaction.rules.lease_seconds
        )
        transaction.changed = True
    return [
        PlanningTask(
            run_id=row["run_id"],
            attempt=row["plan_attempt"],
            request=stored_request(row["body"]),
            is_rerun=row["rerun_of"] is not None,
        )
        for row in sorted(rows, key=lambda row: str(row["run_id"]))
    ]


async def _begin(transaction: PostgreSQLTransaction, now: float) -> None:
    """Move delayed runs whose time has come to PLANNING, before any claim."""
    due = await transaction.connection.fetch(
        "SELECT run_id FROM runs WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED",
        now,
        BEGUN_AT_ONCE,
    )
    if due:
        await change_runs(transaction, [row["run_id"] for row in due], begin)


async def take_back_planning(
    transaction: PostgreSQLTransaction, worker_id: str, claimed: Collection[str]
) -> None:
    """Release the worker's planning, except for the runs in `claimed`."""
    status = await transaction.connection.execute(
        "UPDATE runs SET plan_worker = NULL, plan_since = NULL WHERE plan_worker = $1 AND run_id <> ALL($2)",
        worker_id,
        list(claimed),
    )
    transaction.changed = status != "UPDATE 0"


class PlannedRun(NamedTuple):
    """A run that was planned, and the decision about it."""

    task: PlanningTask
    run: RunSpec
    decide: DecidePlan


async def plan_runs(
    transaction: PostgreSQLTransaction, group: Sequence[PlannedRun]
) -> Sequence[bool | OrderQuestion]:
    """Load the runs with those that they may supersede, and write what is decided.

    No two of them are of one branch or change request: the second must see what the first one changed.
    """
    histories = await ref_histories(transaction, [each.task.request for each in group])
    scopes = await rerun_scopes(transaction, [each.task.run_id for each in group])
    run_ids = {each.task.run_id: None for each in group}
    for each, history in zip(group, histories, strict=True):
        loaded = runs_to_load(
            each.task.request,
            history.open_runs,
            transaction.rules.supersede,
            requested=each.run.supersede,
        )
        run_ids |= dict.fromkeys(other.run_id for other in loaded)
    return await change_runs(
        transaction,
        run_ids,
        lambda unit: [
            each.decide(unit, history, scopes.get(each.task.run_id, NOT_A_RERUN))
            for each, history in zip(group, histories, strict=True)
        ],
    )
