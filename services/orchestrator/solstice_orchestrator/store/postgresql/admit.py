"""Admits requests as runs in the PostgreSQL store, and gives runs to planning.

A batch takes a few statements; each request is admitted once.
"""

import json
from collections.abc import Collection, Sequence

from solstice_common.messages import JobRequestV1, stored_request
from solstice_orchestrator.store.decisions.admit import NewRun, first_statuses, new_runs, renewed_request
from solstice_orchestrator.store.decisions.plan import BEGUN_AT_ONCE, begin
from solstice_orchestrator.store.postgresql.cancel import end_cancelled, share_changes
from solstice_orchestrator.store.postgresql.tables import workers
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, load_runs, write
from solstice_orchestrator.store.protocol import Admission, Admitted, Duplicate, PlanningTask
from solstice_orchestrator.store.records.changes import RowChanges
from solstice_orchestrator.store.records.moment import Moment


async def admit(
    transaction: PostgreSQLTransaction,
    requests: Sequence[JobRequestV1],
    bodies: Sequence[bytes],
    rerun_of: str | None = None,
    only: Collection[str] | None = None,
) -> Sequence[Admission]:
    """Store the new requests; return for each whether it was admitted or a duplicate."""
    moment = Moment(await transaction.now(), transaction.rules)
    new = new_runs(moment, requests, bodies)
    # All transactions use one order, since each waits for any other that admits the same request; of equal keys the
    # first in the batch counts.
    first = {run.idempotency_key or run.request_key: run for run in reversed(new)}
    ordered = sorted(first.values(), key=lambda run: run.request_key)
    await share_changes(transaction, ordered)
    rows = await transaction.connection.fetch(
        "INSERT INTO requests (run_id, request_key, idempotency_key, repository, ref, created_at, rerun_of, only_jobs, body,"
        " change_key)"
        " SELECT run_id, request_key, idempotency_key, repository, ref, $1, $2, $3, body, change_key"
        " FROM unnest($4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::text[], $9::bytea[], $10::text[])"
        " AS new (run_id, request_key, idempotency_key, repository, ref, body, change_key)"
        " WHERE NOT EXISTS (SELECT FROM request_aliases WHERE request_aliases.request_key = new.request_key)"
        " ON CONFLICT DO NOTHING RETURNING run_id",
        moment.now,
        rerun_of,
        None if only is None else json.dumps(sorted(only)),
        [run.run_id for run in ordered],
        [run.request_key for run in ordered],
        [run.idempotency_key for run in ordered],
        [run.repository for run in ordered],
        [run.ref for run in ordered],
        [run.body for run in ordered],
        [run.change_key for run in ordered],
    )
    stored = {row["run_id"] for row in rows}
    kept = [run for run in new if run.run_id in stored]
    if kept:
        await transaction.connection.execute(
            "INSERT INTO runs (run_id, state, plan_at, runs_on)"
            " SELECT * FROM unnest($1::text[], $2::text[], $3::double precision[], $4::text[])",
            [run.run_id for run in kept],
            [run.state.value for run in kept],
            [run.plan_at for run in kept],
            [run.request.runs_on for run in kept],
        )
        await write(transaction, RowChanges(statuses=first_statuses(moment, kept)))
        await end_cancelled(transaction, kept)
    return [
        Admitted(run_id=run.run_id)
        if run.run_id in stored
        else Duplicate(run_id=await _run_of(transaction, run))
        for run in new
    ]


async def rerun(transaction: PostgreSQLTransaction, run_id: str, only: Collection[str] | None) -> str | None:
    """Create a new run of the same request, and return its id.

    `only` limits it to these jobs. None when there is no such run.
    """
    row = await transaction.connection.fetchrow("SELECT body FROM requests WHERE run_id = $1", run_id)
    if row is None:
        return None
    request = renewed_request(Moment(await transaction.now(), transaction.rules), row["body"])
    (admitted,) = await admit(transaction, [request], [request.encode()], rerun_of=run_id, only=only)
    return admitted.run_id


async def claim_planning(
    transaction: PostgreSQLTransaction, worker_id: str, limit: int
) -> Sequence[PlanningTask]:
    """Claim runs that wait to be planned, oldest first.

    Runs that another claim has locked are skipped.
    """
    now = await transaction.now()
    await _begin(transaction, now)
    if not await workers.takes_jobs(transaction.connection, worker_id, now):
        return []
    rows = await transaction.connection.fetch(
        "WITH taken AS MATERIALIZED (SELECT run_id FROM runs"
        " WHERE to_plan AND plan_at <= $1"
        " ORDER BY run_id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)"
        " UPDATE runs SET plan_worker = $3, plan_since = $1, plan_attempt = plan_attempt + 1"
        " FROM taken JOIN requests USING (run_id) WHERE runs.run_id = taken.run_id"
        " RETURNING runs.run_id, runs.plan_attempt, requests.body",
        now,
        limit,
        worker_id,
    )
    if rows:
        await workers.record_claim(transaction.connection, worker_id, now, transaction.rules.lease_seconds)
        transaction.changed = True
    return [
        PlanningTask(run_id=row["run_id"], attempt=row["plan_attempt"], request=stored_request(row["body"]))
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
        unit = await load_runs(transaction, [row["run_id"] for row in due])
        begin(unit)
        await write(transaction, unit.changes())


async def take_back_planning(
    transaction: PostgreSQLTransaction, worker_id: str, claimed: Collection[str]
) -> None:
    """Release the worker's planning, but for the runs in `claimed`."""
    status = await transaction.connection.execute(
        "UPDATE runs SET plan_worker = NULL, plan_since = NULL WHERE plan_worker = $1 AND run_id <> ALL($2)",
        worker_id,
        list(claimed),
    )
    transaction.changed = status != "UPDATE 0"


async def _run_of(transaction: PostgreSQLTransaction, new: NewRun) -> str:
    """Return the run that a request duplicates, and store this request id as its alias."""
    known = await transaction.connection.fetchval(
        "SELECT run_id FROM requests WHERE request_key = $1"
        " UNION ALL SELECT run_id FROM request_aliases WHERE request_key = $1",
        new.request_key,
    )
    if known is not None:
        return str(known)
    same = await transaction.connection.fetchval(
        "SELECT run_id FROM requests WHERE idempotency_key = $1", new.idempotency_key
    )
    await transaction.connection.execute(
        "INSERT INTO request_aliases VALUES ($1, $2) ON CONFLICT DO NOTHING", new.request_key, same
    )
    return str(same)
