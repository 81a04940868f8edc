"""The buckets of the rates of starts in the PostgreSQL store.

Claims that would take from the same label's bucket, or from those of repositories, wait for each other: a moment, and
only where a rate is set. What each takes is then counted at a moment of the database's clock that comes after that of
the one before, so the rates hold to the letter over all orchestrators.
"""

from collections.abc import Collection, Sequence
from typing import Final

from solstice_orchestrator.rates import Scope
from solstice_orchestrator.store.postgresql.transaction import Transaction
from solstice_orchestrator.store.starts import UNLIMITED, BucketRow, Starts, starts_of

_LOCK: Final = 0x5016
"""The class of the advisory locks of the buckets."""
_REPOSITORIES: Final = "*"
"""Stands for those of all repositories: a claim knows only later which it takes from. No label is called so."""
_COLUMNS: Final = ", ".join(BucketRow._fields)


async def starts(transaction: Transaction, labels: Collection[str]) -> Starts:
    """The buckets that a claim for these labels may take from, ours alone until the transaction ends.

    Nothing is asked where no rate is set.
    """
    rates = transaction.rules.rates
    names = [label for label in labels if rates.labels.rate(label) is not None]
    if rates.repositories.any:
        names.append(_REPOSITORIES)
    if not names:
        return UNLIMITED
    # In one order, so that nobody waits in a circle.
    await transaction.connection.execute(
        "SELECT pg_advisory_xact_lock($1, key) FROM"
        " (SELECT DISTINCT hashtext(name) AS key FROM unnest($2::text[]) AS name ORDER BY key) AS keys",
        _LOCK,
        names,
    )
    # Statements of their own: they see what was committed, and the time that passed, while the locks were waited for.
    return await known(transaction)


async def known(transaction: Transaction) -> Starts:
    """Every bucket that is not full, as it is now."""
    now = await transaction.now()
    rows = await transaction.connection.fetch(
        f"SELECT {_COLUMNS} FROM start_buckets WHERE full_at > $1",  # noqa: S608  made of constants
        now,
    )
    return starts_of(transaction.rules.rates, map(tuple, rows), now)


async def keep(transaction: Transaction, rows: Sequence[BucketRow]) -> None:
    """What a claim left in them; repositories whose buckets are full again are forgotten."""
    if not rows:
        return
    await transaction.connection.execute(
        "INSERT INTO start_buckets SELECT * FROM unnest"
        "($1::text[], $2::text[], $3::double precision[], $4::double precision[], $5::double precision[])"
        " ON CONFLICT (scope, name) DO UPDATE"
        " SET amount = excluded.amount, at = excluded.at, full_at = excluded.full_at",
        *[list(column) for column in zip(*rows, strict=True)],
    )
    if any(row.scope == Scope.REPOSITORY for row in rows):
        await transaction.connection.execute(
            "DELETE FROM start_buckets WHERE scope = $1 AND full_at <= $2", Scope.REPOSITORY.value, rows[0].at
        )
