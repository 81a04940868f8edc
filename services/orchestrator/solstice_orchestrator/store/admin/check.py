"""Checks whether a store is fit for work; it only reads.

It checks the schema, and whether the rows fit together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from solstice_common.settings import is_postgresql, without_password
from solstice_common.storage.migrations import Migration, applied_to, migrations_of, missing
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import applied_to as applied_to_postgresql
from solstice_common.storage.schema_state import reading
from solstice_common.storage.sqlite_place import SqlitePlace, sqlite_place
from solstice_orchestrator.store.records.attempts import ENDED_ATTEMPTS

COUNTED: Final = (
    "runs",
    "jobs",
    "attempts",
    "log_chunks",
    "outbox",
    "request_aliases",
    "workers",
    "schedules",
    "ticks",
)
_COUNTS: Final[Mapping[str, str]] = {
    "outbox": "coalesce(sum(messages), 0) FROM outbox",
    "attempts": f"count(*) FROM {ENDED_ATTEMPTS}",
}
"""Tables that are not counted by rows: one row of the outbox may hold many messages, and an attempt needs no row."""

RULES: Final[Mapping[str, str]] = {
    "runs without their request": "runs WHERE NOT EXISTS (SELECT 1 FROM {requests})",
    "jobs without a run": "jobs WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = jobs.run_id)",
    "attempts without a job": (
        "attempts WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = attempts.job_id)"
    ),
    "logs without a job": (
        "(SELECT DISTINCT job_id FROM log_chunks) AS logs"
        " WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = logs.job_id)"
    ),
    "other request ids without a run": (
        "request_aliases WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = request_aliases.run_id)"
    ),
    "finished runs with unfinished jobs": (
        "runs WHERE finished_at IS NOT NULL AND EXISTS"
        " (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id AND jobs.finished_at IS NULL)"
    ),
    "planned runs whose jobs have all ended, but which have not": (
        "runs WHERE finished_at IS NULL AND state NOT IN ('delayed', 'planning') AND NOT EXISTS"
        " (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id AND jobs.finished_at IS NULL)"
    ),
    "running jobs without a holder": (
        "jobs WHERE state = 'running' AND (worker_id IS NULL OR lease_until IS NULL)"
    ),
    "ticks without a schedule": (
        "ticks WHERE NOT EXISTS (SELECT 1 FROM schedules WHERE schedules.schedule_id = ticks.schedule_id)"
    ),
    "schedules that wait for no tick, and are not paused": "schedules WHERE next_at IS NULL AND NOT paused",
    "ticks that are due, and never looked at": "ticks WHERE state = 'due' AND retry_at IS NULL",
}
"""What must not exist, and how to count it; the same on every database."""

Ask = Callable[[str], Awaitable[Sequence[Any]]]
"""Runs one query and returns its first column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """The result of a check."""

    database: str
    """Its URL, without a password."""
    version: int
    """The version of the store's schema; 0 when it has none."""
    known: int
    """The newest version of the schema that this program knows."""
    pending: Sequence[int]
    """The migrations that `migrate`, or the next start of an orchestrator, will apply."""
    counts: Mapping[str, int]
    """Rows per table (messages for the outbox, ended attempts for attempts); only of a current schema and a sound
    file.
    """
    problems: Sequence[str]
    """What does not fit together, as sentences."""

    @property
    def well(self) -> bool:
        """Whether nothing is pending and nothing is wrong."""
        return not self.pending and not self.problems


async def check(url: str) -> StoreCheck:
    """Check the store at `url`, and change nothing.

    Raises ConfigurationError (also when there is no such file), StoreUnavailable, SchemaTooNew.
    """
    if not is_postgresql(url):
        return await _check_sqlite(sqlite_place(url, "store"))
    async with connected(url) as connection:
        applied = await applied_to_postgresql(connection)

        async def ask(query: str) -> Sequence[Any]:
            return [row[0] for row in await connection.fetch(query)]

        return await _store_check(without_password(url), applied, "postgresql", ask, own=())


async def _check_sqlite(place: SqlitePlace) -> StoreCheck:
    with reading(place) as connection:

        async def ask(query: str) -> Sequence[Any]:
            found = await asyncio.to_thread(lambda: connection.execute(query).fetchall())
            return [row[0] for row in found]

        own = [
            f"the file is damaged: {problem}"
            for problem in await ask("PRAGMA integrity_check")
            if problem != "ok"
        ]
        return await _store_check(str(place), applied_to(connection), "sqlite", ask, own=own)


async def _store_check(
    where: str, applied: Mapping[int, str], dialect: str, ask: Ask, *, own: Sequence[str]
) -> StoreCheck:
    migrations: Sequence[Migration] = migrations_of(f"solstice_orchestrator.store.schema.{dialect}")
    pending = missing(where, applied, migrations)
    counts: dict[str, int] = {}
    problems = list(own)
    # With a damaged database, or another schema, these queries would not be reliable.
    if not pending and not own:
        for table in COUNTED:
            counts[table] = int((await ask(f"SELECT {_COUNTS.get(table, f'count(*) FROM {table}')}"))[0])  # noqa: S608  names of ours
        for problem, rows in RULES.items():
            count = int((await ask(f"SELECT count(*) FROM {rows.format(requests=_REQUESTS[dialect])}"))[0])  # noqa: S608  rules of ours
            if count:
                problems.append(f"{count} {problem}")
    return StoreCheck(
        database=where,
        version=max(applied, default=0),
        known=max(migration.version for migration in migrations),
        pending=[migration.version for migration in pending],
        counts=counts,
        problems=problems,
    )


_REQUESTS: Final = {
    "sqlite": "requests WHERE requests.age = runs.age",
    "postgresql": "requests WHERE requests.run_id = runs.run_id",
}
