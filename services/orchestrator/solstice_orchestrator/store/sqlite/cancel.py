"""Wishes to cancel in the SQLite store: kept, and carried out on what is there and on what still comes."""

import json
from collections.abc import Sequence

from solstice_common.messages import JobCancelV1
from solstice_orchestrator.store.decisions.admit import NewRun
from solstice_orchestrator.store.decisions.cancel import Wish, end_reached, wish_of
from solstice_orchestrator.store.protocol import Cancelled
from solstice_orchestrator.store.sqlite.tables.transaction import Transaction, ledger_of_runs, write


def cancel(transaction: Transaction, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
    """Keep the wishes and end what they are about; say for each what came of it."""
    return [_cancel(transaction, wish_of(each, transaction.now)) for each in cancels]


def end_cancelled(transaction: Transaction, runs: Sequence[NewRun]) -> None:
    """End those of the new runs about which there was a wish before they came."""
    of_change = [run for run in runs if run.change_key is not None]
    if not of_change:
        return
    found = transaction.connection.execute(
        "SELECT change_key, asked_at, detail, kept_at FROM cancels"
        " WHERE change_key IN (SELECT value FROM json_each(?))",
        (json.dumps([run.change_key for run in of_change]),),
    )
    wishes = [Wish(*row) for row in found]
    if wishes:
        _end(transaction, [run.run_id for run in of_change], wishes)


def _cancel(transaction: Transaction, wish: Wish) -> Cancelled:
    transaction.connection.execute(
        "INSERT INTO cancels VALUES (?, ?, ?, ?) ON CONFLICT (change_key) DO UPDATE"
        " SET asked_at = excluded.asked_at, detail = excluded.detail, kept_at = excluded.kept_at"
        " WHERE excluded.asked_at > cancels.asked_at",
        wish,
    )
    rows = transaction.connection.execute(
        "SELECT run_id, finished_at FROM runs WHERE change_key = ?", (wish.change_key,)
    ).fetchall()
    unfinished = [row["run_id"] for row in rows if row["finished_at"] is None]
    return Cancelled(run_ids=tuple(_end(transaction, unfinished, [wish])), known=bool(rows))


def _end(transaction: Transaction, run_ids: Sequence[str], wishes: Sequence[Wish]) -> Sequence[str]:
    ledger = ledger_of_runs(transaction, run_ids)
    reached = end_reached(ledger, wishes)
    write(transaction, ledger.changes())
    return reached
