"""Runs are planned: claimed under the worker's heartbeat, and turned into jobs or into an error."""

import json
from collections.abc import Sequence

from solstice_orchestrator.jobs import (
    INFRASTRUCTURE,
    MAX_ATTEMPTS,
    JobSpec,
    JobState,
    Reason,
    RunState,
)
from solstice_orchestrator.retries import next_retry
from solstice_orchestrator.scheduling import rank
from solstice_orchestrator.statuses import storable
from solstice_orchestrator.store.leases import beat
from solstice_orchestrator.store.moves import add_job, move_run, settle_run
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.rows import REQUEST, encode_spec, request_of
from solstice_orchestrator.store.transaction import Transaction


def claim_planning(transaction: Transaction, worker_id: str, limit: int) -> Sequence[PlanningTask]:
    """Take runs that wait to be planned, oldest first."""
    rows = transaction.connection.execute(
        f"SELECT age, run_id, plan_attempt, {REQUEST} FROM runs"  # noqa: S608  made of constants
        " WHERE state = 'planning' AND plan_worker IS NULL AND plan_at <= ? ORDER BY run_id LIMIT ?",
        (transaction.now, limit),
    ).fetchall()
    if not rows:
        return []
    beat(transaction, worker_id)
    transaction.connection.execute(
        "UPDATE runs SET plan_worker = ?, plan_since = ?, plan_attempt = plan_attempt + 1"
        " WHERE age IN (SELECT value FROM json_each(?))",
        (worker_id, transaction.now, json.dumps([row["age"] for row in rows])),
    )
    return [
        PlanningTask(
            run_id=row["run_id"], attempt=row["plan_attempt"] + 1, request=request_of(row["request"])
        )
        for row in rows
    ]


def planned(transaction: Transaction, task: PlanningTask, jobs: Sequence[JobSpec]) -> bool:
    """Give the run its jobs; ValueError when two have one name, or one needs what is not there."""
    names = {spec.name for spec in jobs}
    if len(names) < len(jobs) or any(need not in names for spec in jobs for need in spec.needs):
        raise ValueError(f"jobs of run {task.run_id}: names are not unique, or a need is not among them")
    if not _current(transaction, task):
        return False
    move_run(
        transaction,
        task.run_id,
        RunState.WAITING,
        jobs=[JobState.BLOCKED if spec.needs else JobState.WAITING for spec in jobs],
    )
    for position, spec in enumerate(jobs):
        add_job(
            transaction,
            {
                "job_id": transaction.new_id(),
                "run_id": task.run_id,
                "position": position,
                "name": spec.name,
                "runs_on": spec.runs_on,
                "priority": rank(spec.priority),
                "needs": json.dumps(spec.needs),
                "spec": encode_spec(spec),
                "state": (JobState.BLOCKED if spec.needs else JobState.WAITING).value,
                "reason": Reason.PLANNED.value,
                "created_at": transaction.now,
            },
        )
    settle_run(transaction, task.run_id)
    return True


def not_planned(transaction: Transaction, task: PlanningTask, reason: Reason, detail: str) -> bool:
    """The run goes back, waits for another try, or ends."""
    if not _current(transaction, task):
        return False
    detail = storable(detail)
    if reason is Reason.RELEASED:
        transaction.connection.execute(
            "UPDATE runs SET plan_worker = NULL, plan_since = NULL WHERE run_id = ?", (task.run_id,)
        )
    elif reason in INFRASTRUCTURE:
        plan_failed(transaction, task.run_id, reason, detail)
    else:
        move_run(transaction, task.run_id, RunState.ERRORED, reason=reason, detail=detail)
    return True


def plan_failed(transaction: Transaction, run_id: str, reason: Reason, detail: str) -> None:
    """The world kept a run from being planned: later again, until the budget is spent."""
    run = transaction.connection.execute(
        "UPDATE runs SET plan_worker = NULL, plan_since = NULL, plan_failures = plan_failures + 1, detail = ?"
        " WHERE run_id = ? RETURNING plan_failures",
        (detail, run_id),
    ).fetchone()
    rules = transaction.rules
    wait = next_retry(run["plan_failures"], reason, rules.rng, base_seconds=rules.retry_base_seconds)
    if wait is None:
        words = f"its workflow could not be read, {MAX_ATTEMPTS} times: {detail or reason.value}"
        move_run(transaction, run_id, RunState.ERRORED, reason=reason, detail=words)
    else:
        transaction.connection.execute(
            "UPDATE runs SET plan_at = ? WHERE run_id = ?", (transaction.now + wait, run_id)
        )


def _current(transaction: Transaction, task: PlanningTask) -> bool:
    row = transaction.connection.execute(
        "SELECT 1 FROM runs WHERE run_id = ? AND state = 'planning'"
        " AND plan_attempt = ? AND plan_worker IS NOT NULL",
        (task.run_id, task.attempt),
    ).fetchone()
    return row is not None
