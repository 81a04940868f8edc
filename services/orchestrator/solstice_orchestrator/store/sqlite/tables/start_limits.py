"""Loads and records what limits starts besides slots, in the SQLite store.

That is the number of running jobs, and the counts and buckets of starts.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.quotas import MINUTE
from solstice_orchestrator.scheduling.rates import BucketScope
from solstice_orchestrator.scheduling.starts import BucketRow, StartBudget, StartedRow, buckets_of, started_of
from solstice_orchestrator.store.records.moment import Moment

_BUCKET: Final = ", ".join(BucketRow._fields)
_STARTED: Final = ", ".join(StartedRow._fields)


def load_budget(connection: sqlite3.Connection, moment: Moment, *, since_seconds: float = 0.0) -> StartBudget:
    """Return the start budget as far as the limits need it.

    Without a limit nothing is read. It includes buckets and counts that expired in the last `since_seconds`.
    """
    limits = moment.rules.limits
    if not limits.any:
        return StartBudget(limits=limits)

    def rows(query: str) -> list[sqlite3.Row]:
        return connection.execute(query, (moment.now - since_seconds,)).fetchall()

    return StartBudget(
        limits=limits,
        running=_running(connection) if limits.of_running else {},
        started=started_of(rows(f"SELECT {_STARTED} FROM owner_starts WHERE until > ?"))  # noqa: S608  made of constants
        if limits.quotas.starts_per_hour.any
        else {},
        buckets=buckets_of(rows(f"SELECT {_BUCKET} FROM start_buckets WHERE full_at > ?"))  # noqa: S608  made of constants
        if limits.rates.any
        else {},
        now=moment.now,
    )


def record_starts(
    connection: sqlite3.Connection, budget: StartBudget, chosen: Sequence[Candidate], now: float
) -> None:
    """Record the starts of a claim, and delete expired counts and buckets."""
    buckets = budget.spent(chosen, now)
    if buckets:
        connection.executemany("INSERT OR REPLACE INTO start_buckets VALUES (?, ?, ?, ?, ?)", buckets)
        connection.execute(
            "DELETE FROM start_buckets WHERE scope = ? AND full_at <= ?",
            (BucketScope.REPOSITORY.value, now - MINUTE),
        )
    counted = budget.counted(chosen, now)
    if counted:
        connection.executemany(
            "INSERT INTO owner_starts VALUES (?, ?, ?)"
            " ON CONFLICT (owner, until) DO UPDATE SET starts = starts + excluded.starts",
            counted,
        )
        connection.execute("DELETE FROM owner_starts WHERE until <= ?", (now - MINUTE,))


def _running(connection: sqlite3.Connection) -> Mapping[str, int]:
    """Count the running jobs of each repository."""
    rows = connection.execute(
        "SELECT repository, count(*) AS jobs FROM jobs WHERE state = 'running' GROUP BY repository"
    )
    return {row["repository"]: row["jobs"] for row in rows}
