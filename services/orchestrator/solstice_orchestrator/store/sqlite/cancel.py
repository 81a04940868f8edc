"""Keeps cancel requests in the SQLite store, and applies them to current and later runs."""

import json
from collections.abc import Sequence

from solstice_common.messages import JobCancelV1
from solstice_orchestrator.store.decisions.admit import NewRun
from solstice_orchestrator.store.decisions.cancel import (
    CancelRow,
    cancel_row_of,
    cancelled,
    end_cancelled_runs,
)
from solstice_orchestrator.store.protocol import Cancelled
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction, change_runs


def cancel(transaction: SqliteTransaction, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
    """Keep the cancel requests and end their runs; return the result of each."""
    return [_cancel(transaction, cancel_row_of(each, transaction.now)) for each in cancels]


def end_cancelled(transaction: SqliteTransaction, runs: Sequence[NewRun]) -> None:
    """End those of the new runs whose cancel request came earlier."""
    of_change = [run for run in runs if run.change_key is not None]
    if not of_change:
        return
    rows = transaction.connection.execute(
        "SELECT change_key, requested_at, detail, stored_at FROM cancels"
        " WHERE change_key IN (SELECT value FROM json_each(?))",
        (json.dumps([run.change_key for run in of_change]),),
    )
    cancel_rows = [CancelRow(*row) for row in rows]
    if cancel_rows:
        run_ids = [run.run_id for run in of_change]
        change_runs(transaction, run_ids, lambda unit: end_cancelled_runs(unit, cancel_rows))


def _cancel(transaction: SqliteTransaction, cancel_row: CancelRow) -> Cancelled:
    transaction.connection.execute(
        "INSERT INTO cancels VALUES (?, ?, ?, ?) ON CONFLICT (change_key) DO UPDATE"
        " SET requested_at = excluded.requested_at, detail = excluded.detail, stored_at = excluded.stored_at"
        " WHERE excluded.requested_at > cancels.requested_at",
        cancel_row,
    )
    rows = transaction.connection.execute(
        "SELECT run_id, finished_at FROM runs WHERE change_key = ?", (cancel_row.change_key,)
    ).fetchall()
    unfinished = [row["run_id"] for row in rows if row["finished_at"] is None]
    return change_runs(transaction, unfinished, lambda unit: cancelled(unit, cancel_row, known=bool(rows)))
