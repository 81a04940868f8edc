"""Admits requests as runs in the PostgreSQL store.

A batch takes a few statements; each request is admitted once.
"""

from collections.abc import Sequence

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.store.decisions.admit import NewRun, first_statuses, new_runs, traced_runs
from solstice_orchestrator.store.decisions.steer import Rerun
from solstice_orchestrator.store.postgresql.cancel import end_cancelled, share_changes
from solstice_orchestrator.store.postgresql.tables import run_traces
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, write
from solstice_orchestrator.store.protocol import Admission, Admitted, Duplicate
from solstice_orchestrator.store.records.changes import RowChanges
from solstice_orchestrator.store.records.moment import Moment


async def admit(
    transaction: PostgreSQLTransaction,
    requests: Sequence[JobRequestV1],
    bodies: Sequence[bytes],
    rerun: Rerun | None = None,
    signatures: Sequence[str] | None = None,
) -> Sequence[Admission]:
    """Store the new requests; return for each whether it was admitted or a duplicate."""
    moment = Moment(await transaction.now(), transaction.rules)
    new = new_runs(moment, requests, bodies, signatures, reruns=rerun is not None)
    # All transactions use one order, since each waits for any other that admits the same request; of equal keys the
    # first in the batch counts.
    first = {run.idempotency_key or run.request_key: run for run in reversed(new)}
    ordered = sorted(first.values(), key=lambda run: run.request_key)
    await share_changes(transaction, ordered)
    rows = await transaction.connection.fetch(
        "INSERT INTO requests (run_id, request_key, idempotency_key, repository, ref, created_at, rerun_of, only_jobs, body,"
        " change_key, signature, pushed_at)"
        " SELECT run_id, request_key, idempotency_key, repository, ref, $1, $2, $3, body, change_key, signature, pushed_at"
        " FROM unnest($4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::text[], $9::bytea[], $10::text[], $11::text[],"
        " $12::double precision[])"
        " AS new (run_id, request_key, idempotency_key, repository, ref, body, change_key, signature, pushed_at)"
        " WHERE NOT EXISTS (SELECT FROM request_aliases WHERE request_aliases.request_key = new.request_key)"
        " ON CONFLICT DO NOTHING RETURNING run_id",
        moment.now,
        rerun and rerun.rerun_of,
        rerun and rerun.only_jobs,
        [run.run_id for run in ordered],
        [run.request_key for run in ordered],
        [run.idempotency_key for run in ordered],
        [run.repository for run in ordered],
        [run.ref for run in ordered],
        [run.body for run in ordered],
        [run.change_key for run in ordered],
        [run.signature for run in ordered],
        [run.pushed_at for run in ordered],
    )
    stored = {row["run_id"] for row in rows}
    admitted = [run for run in new if run.run_id in stored]
    if admitted:
        await transaction.connection.execute(
            "INSERT INTO runs (run_id, state, plan_at, runs_on)"
            " SELECT * FROM unnest($1::text[], $2::text[], $3::double precision[], $4::text[])",
            [run.run_id for run in admitted],
            [run.state.value for run in admitted],
            [run.plan_at for run in admitted],
            [run.request.runs_on for run in admitted],
        )
        if traced := traced_runs(moment, admitted):
            await run_traces.insert(transaction, traced)
        await write(transaction, RowChanges(statuses=first_statuses(moment, admitted)))
        await end_cancelled(transaction, admitted)
    return [
        Admitted(run_id=run.run_id)
        if run.run_id in stored
        else Duplicate(run_id=await _run_of(transaction, run))
        for run in new
    ]


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
