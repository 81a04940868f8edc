"""Records an orchestrator's past runs as a trace for `simulation/`; it only reads.

A line is a job that ran and has ended, at the moment when its run was planned. All attempts at it are one stretch of
time in a slot; names of concurrency groups are digests. The database sorts, and rows are read only when needed.
"""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import orjson

from solstice_common.errors import ConfigurationError
from solstice_common.settings import is_postgresql, without_password
from solstice_common.storage.migrations import applied_to, migrations_of, missing
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import applied_to as applied_to_postgresql
from solstice_common.storage.schema_state import reading
from solstice_common.storage.sqlite_place import sqlite_place
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.scheduling.order import PRIORITY_ORDER
from solstice_orchestrator.simulation.trace import TraceGroup, TraceJob, TraceRun
from solstice_orchestrator.store.records.attempts import ENDED_ATTEMPTS

FETCHED_AT_ONCE: Final = 1000

Row = Any
"""A row of either database; its columns have names."""

_JOBS: Final = f"""
SELECT jobs.run_id, jobs.created_at, jobs.repository, jobs.runs_on, jobs.priority, jobs.name, jobs.needs,
    (SELECT sum(ended_attempts.finished_at - ended_attempts.started_at) FROM {ENDED_ATTEMPTS}
        WHERE ended_attempts.job_id = jobs.job_id) AS seconds,
    jobs.group_key, CASE WHEN jobs.group_key IS NOT NULL THEN jobs.spec END AS spec,
    runs.group_key AS run_group_key, runs.concurrency AS run_concurrency
FROM jobs JOIN runs ON runs.run_id = jobs.run_id
WHERE jobs.finished_at IS NOT NULL AND jobs.created_at >= {{since}} AND jobs.attempt > 0
ORDER BY jobs.created_at, jobs.run_id, jobs.position
"""  # noqa: S608  made of constants


async def recorded_runs(url: str, since: float) -> AsyncIterator[TraceRun]:
    """Yield the runs planned at `since` (seconds since the epoch) or later, in order.

    Times in the trace begin at 0. Raises ConfigurationError (also when there is no such file), StoreUnavailable,
    SchemaTooNew.
    """
    run: list[Row] = []
    begun: float | None = None
    async for row in _rows(url, since):
        begun = row["created_at"] if begun is None else begun
        if run and run[0]["run_id"] != row["run_id"]:
            yield _run(run, begun)
            run = []
        run.append(row)
    if run and begun is not None:
        yield _run(run, begun)


async def _rows(url: str, since: float) -> AsyncIterator[Row]:
    if not is_postgresql(url):
        place = sqlite_place(url, "store")
        with reading(place) as database:
            database.row_factory = sqlite3.Row
            _up_to_date(str(place), applied_to(database), "sqlite")
            cursor = database.execute(_JOBS.format(since="?"), (since,))
            while rows := cursor.fetchmany(FETCHED_AT_ONCE):
                for row in rows:
                    yield row
        return
    async with connected(url) as connection:
        _up_to_date(without_password(url), await applied_to_postgresql(connection), "postgresql")
        # The reader that writes the trace may be slow.
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        async with connection.transaction(readonly=True):
            async for record in connection.cursor(_JOBS.format(since="$1"), since, prefetch=FETCHED_AT_ONCE):
                yield record


def _up_to_date(where: str, applied: Mapping[int, str], dialect: str) -> None:
    if missing(where, applied, migrations_of(f"solstice_orchestrator.store.schema.{dialect}")):
        raise ConfigurationError(
            f"the database {where} has an older schema: run 'solstice store migrate' first"
        )


def _run(rows: Sequence[Row], begun: float) -> TraceRun:
    """Return the jobs of a run; skipped jobs are not in the trace, nor needed."""
    names = {row["name"] for row in rows}
    needs = [tuple(need for need in orjson.loads(row["needs"]) if need in names) for row in rows]
    needed = {need for each in needs for need in each}
    return [
        TraceJob(
            at=row["created_at"] - begun,
            repository=row["repository"],
            label=row["runs_on"],
            seconds=row["seconds"],
            priority=PRIORITY_ORDER[row["priority"]],
            run=row["run_id"] if len(rows) > 1 else "",
            name=row["name"] if row["name"] in needed else "",
            needs=each,
            concurrency=_group(row["group_key"], row["spec"]),
            run_concurrency=_group(row["run_group_key"], row["run_concurrency"]),
        )
        for row, each in zip(rows, needs, strict=True)
    ]


def _group(key: bytes | None, stored: bytes | str | None) -> TraceGroup | None:
    """Return a group's digest; `stored`: JSON, a run's concurrency or a job's spec."""
    if key is None or stored is None:
        return None
    fields = orjson.loads(stored)
    return TraceGroup(group=key.hex(), mode=GroupMode(fields.get("concurrency", fields)["mode"]))
