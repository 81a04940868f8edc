"""Keeps cancel requests in the PostgreSQL store, and applies them to current and later runs.

A transaction that admits a run of a change request takes a shared lock, and a cancel request takes it alone: so one of
the two sees what the other did.
"""

from collections.abc import Sequence
from typing import Final

from solstice_common.messages import JobCancelV1
from solstice_orchestrator.store.decisions.admit import NewRun
from solstice_orchestrator.store.decisions.cancel import (
    CancelRow,
    cancel_row_of,
    cancelled,
    end_cancelled_runs,
)
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, change_runs
from solstice_orchestrator.store.protocol import Cancelled
from solstice_orchestrator.store.records.rows import key

_CHANGE_LOCK: Final = 0x5018
"""A class of advisory locks."""


async def cancel(transaction: PostgreSQLTransaction, message: JobCancelV1) -> Cancelled:
    """Keep one cancel request and end its runs. It takes its lock before all others."""
    connection = transaction.connection
    cancel_row = cancel_row_of(message, await transaction.now())
    await connection.execute(
        "SELECT pg_advisory_xact_lock($1, $2)", _CHANGE_LOCK, _number(cancel_row.change_key)
    )
    transaction.changed = True
    stored = await connection.fetchval(
        "SELECT requested_at FROM cancels WHERE change_key = $1", cancel_row.change_key
    )
    if stored is None or stored < cancel_row.requested_at:
        await connection.execute("DELETE FROM cancels WHERE change_key = $1", cancel_row.change_key)
        await connection.execute("INSERT INTO cancels VALUES ($1, $2, $3, $4)", *cancel_row)
    rows = await connection.fetch(
        "SELECT run_id, finished_at FROM requests JOIN runs USING (run_id) WHERE change_key = $1",
        cancel_row.change_key,
    )
    unfinished = [row["run_id"] for row in rows if row["finished_at"] is None]
    return await change_runs(
        transaction, unfinished, lambda unit: cancelled(unit, cancel_row, known=bool(rows))
    )


async def share_changes(transaction: PostgreSQLTransaction, runs: Sequence[NewRun]) -> None:
    """Lock these change requests against cancel requests until the transaction ends.

    Call this before writing anything about them.
    """
    numbers = sorted({_number(run.change_key) for run in runs if run.change_key is not None})
    if numbers:
        await transaction.connection.execute(
            "SELECT pg_advisory_xact_lock_shared($1, number) FROM unnest($2::integer[]) AS changes (number)",
            _CHANGE_LOCK,
            numbers,
        )


async def end_cancelled(transaction: PostgreSQLTransaction, runs: Sequence[NewRun]) -> None:
    """End those of the new runs whose cancel request came earlier."""
    of_change = [run for run in runs if run.change_key is not None]
    if not of_change:
        return
    rows = await transaction.connection.fetch(
        "SELECT change_key, requested_at, detail, stored_at FROM cancels WHERE change_key = ANY($1)",
        [run.change_key for run in of_change],
    )
    if rows:
        run_ids, cancel_rows = [run.run_id for run in of_change], [CancelRow(*row) for row in rows]
        await change_runs(transaction, run_ids, lambda unit: end_cancelled_runs(unit, cancel_rows))


def _number(change_key: str) -> int:
    return int.from_bytes(key(change_key)[:4], signed=True)
