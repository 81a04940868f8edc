"""The buckets of the rates of starts in the SQLite store."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.rates import Scope
from solstice_orchestrator.store.moment import Moment
from solstice_orchestrator.store.sqlite.transaction import Transaction
from solstice_orchestrator.store.starts import UNLIMITED, BucketRow, Starts, starts_of

_COLUMNS: Final = ", ".join(BucketRow._fields)


def starts(transaction: Transaction) -> Starts:
    """Every bucket that is not full; nothing is asked where no rate is set."""
    return known(transaction.connection, transaction.moment) if transaction.rules.rates.any else UNLIMITED


def known(connection: sqlite3.Connection, moment: Moment) -> Starts:
    """Every bucket that is not full, as it is now."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM start_buckets WHERE full_at > ?",  # noqa: S608  made of constants
        (moment.now,),
    )
    return starts_of(moment.rules.rates, rows.fetchall(), moment.now)


def keep(transaction: Transaction, rows: Sequence[BucketRow]) -> None:
    """What a claim left in them; repositories whose buckets are full again are forgotten."""
    if not rows:
        return
    transaction.connection.executemany("INSERT OR REPLACE INTO start_buckets VALUES (?, ?, ?, ?, ?)", rows)
    transaction.connection.execute(
        "DELETE FROM start_buckets WHERE scope = ? AND full_at <= ?",
        (Scope.REPOSITORY.value, transaction.now),
    )
