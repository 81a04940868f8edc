"""Loads and writes workers in the PostgreSQL store, with the effects of ended attempts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.json import Decoder

from solstice_orchestrator.scheduling.workers import (
    FORGET_SECONDS,
    DesiredWorkerState,
    OrderRefusal,
    WorkerJob,
    WorkerOrder,
    WorkerPressure,
    WorkerRegistration,
    WorkerState,
    WorkerView,
    may_claim,
    state_at,
)
from solstice_orchestrator.store.decisions.worker_records import (
    WorkerRow,
    after_ends,
    counted_failures,
    forgotten_with,
    registered,
    steered,
    worker_view,
)
from solstice_orchestrator.store.records.changes import Attempt, Job

if TYPE_CHECKING:
    import asyncpg

    from solstice_common.storage.postgresql import Connection

WORKER: Final = ", ".join(f"workers.{name}" for name in WorkerRow._fields)
ENCODED: Final = f"SELECT json_build_array({WORKER})::text FROM workers"  # noqa: S608  made of constants
"""A worker's row as one column for `decode_worker`.

Where a worker comes with each of many rows, only one of them is decoded.
"""
_KEEP: Final = (
    f"INSERT INTO workers ({', '.join(WorkerRow._fields)})"  # noqa: S608  made of constants
    f" VALUES ({', '.join(f'${number}' for number in range(1, len(WorkerRow._fields) + 1))})"
    f" ON CONFLICT (worker_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in WorkerRow._fields[1:])}"
)


async def record_heartbeat(connection: "Connection", worker_id: str, now: float) -> WorkerRow:
    """Record the worker's heartbeat, and return its row."""
    row = await connection.fetchrow(
        "INSERT INTO workers (worker_id, started_at, seen_at) VALUES ($1, $2, $2)"  # noqa: S608  made of constants
        f" ON CONFLICT (worker_id) DO UPDATE SET seen_at = $2, ended_at = NULL RETURNING {WORKER}",
        worker_id,
        now,
    )
    assert row is not None  # noqa: S101  an upsert without a condition returns its row
    return worker_of(row)


async def record_claim(connection: "Connection", worker_id: str, now: float, lease_seconds: float) -> None:
    """Record that the worker claims, which makes it known.

    This is no heartbeat while the worker has one: heartbeats alone renew leases, so that no lease outlives the proof
    that its holder is alive.
    """
    await connection.execute(
        "INSERT INTO workers (worker_id, started_at, seen_at) VALUES ($1, $2, $2)"
        " ON CONFLICT (worker_id) DO UPDATE SET seen_at = $2, ended_at = NULL"
        " WHERE workers.seen_at <= $3 OR workers.ended_at IS NOT NULL",
        worker_id,
        now,
        now - lease_seconds,
    )


async def takes_jobs(connection: "Connection", worker_id: str, now: float) -> bool:
    """Return whether the worker gets jobs or planning; one that never registered does."""
    worker = await find_worker(connection, worker_id)
    return worker is None or may_claim(worker.eligibility, now)


async def register(
    connection: "Connection", registration: WorkerRegistration, now: float, lease_seconds: float
) -> WorkerState:
    namesakes = [
        worker_of(row)
        for row in await connection.fetch(
            f"SELECT {WORKER} FROM workers WHERE name = $1 AND worker_id <> $2"  # noqa: S608  made of constants
            " ORDER BY worker_id FOR UPDATE",
            registration.name,
            registration.worker_id,
        )
    ]
    worker = registered(registration, await find_worker(connection, registration.worker_id), namesakes, now)
    await connection.execute(_KEEP, *worker)
    await connection.execute(
        "DELETE FROM workers WHERE worker_id = ANY($1)", forgotten_with(namesakes, now, lease_seconds)
    )
    return state_at(worker.eligibility, now)


async def record_leave(connection: "Connection", worker_id: str, now: float) -> None:
    await connection.execute(
        "UPDATE workers SET seen_at = $2, ended_at = $2 WHERE worker_id = $1", worker_id, now
    )


async def report(connection: "Connection", worker_id: str, pressure: WorkerPressure, now: float) -> None:
    await connection.execute(
        "UPDATE workers SET shrunk_to = $2, refuses = $3, refusal = $4, condition_at = $5 WHERE worker_id = $1",
        worker_id,
        pressure.shrunk_to,
        pressure.refuses and pressure.refuses.value,
        pressure.refusal,
        now,
    )


async def steer(
    connection: "Connection", worker_id: str, order: WorkerOrder, now: float, lease_seconds: float
) -> WorkerView | OrderRefusal | None:
    worker = await find_worker(connection, worker_id, lock=True)
    if worker is None:
        return None
    steered_worker = steered(worker, order, now, lease_seconds)
    if isinstance(steered_worker, OrderRefusal):
        return steered_worker
    await connection.execute(_KEEP, *steered_worker)
    (view,) = await workers(connection, now, lease_seconds, worker_id=worker_id)
    return view


async def workers(
    connection: "Connection", now: float, lease_seconds: float, *, worker_id: str | None = None
) -> Sequence[WorkerView]:
    """Return all workers, or this one; by name, newest of a name first."""
    jobs_by_worker: dict[str, list[WorkerJob]] = {}
    for job in await connection.fetch(
        "SELECT worker_id, job_id, name, runs_on, attempt, started_at FROM jobs"
        " WHERE state = 'running' ORDER BY started_at, job_id"
    ):
        jobs_by_worker.setdefault(job["worker_id"], []).append(
            WorkerJob(
                job_id=job["job_id"],
                name=job["name"],
                runs_on=job["runs_on"],
                attempt=job["attempt"],
                started_at=job["started_at"],
            )
        )
    rows = await connection.fetch(
        f"SELECT {WORKER} FROM workers WHERE seen_at > $1 AND ($2::text IS NULL OR worker_id = $2)"  # noqa: S608  made of constants
        " ORDER BY CASE name WHEN '' THEN worker_id ELSE name END COLLATE \"C\", started_at DESC, worker_id",
        now - FORGET_SECONDS,
        worker_id,
    )
    return [
        worker_view(worker, jobs_by_worker.get(worker.worker_id, ()), now, lease_seconds)
        for worker in map(worker_of, rows)
    ]


async def note_troubles(
    connection: "Connection", attempts: Iterable[Attempt], jobs: Sequence[Job], now: float
) -> None:
    """Count these attempts' failures, at some of `jobs`, against their workers.

    Successes are written together with the ends.
    """
    for worker_id, ended in sorted(counted_failures(attempts).items()):
        worker = await find_worker(connection, worker_id, lock=True)
        if worker is not None:
            await connection.execute(_KEEP, *after_ends(worker, ended, jobs, now))


async def forget_workers(connection: "Connection", now: float, lease_seconds: float) -> None:
    """Delete workers that are long gone, or replaced by another of their name."""
    await connection.execute(
        "DELETE FROM workers AS gone WHERE seen_at <= $1 OR seen_at <= $2 AND name <> '' AND EXISTS"
        " (SELECT FROM workers WHERE name = gone.name AND seen_at > $2 AND started_at >= gone.started_at)",
        now - FORGET_SECONDS,
        now - lease_seconds,
    )


async def find_worker(connection: "Connection", worker_id: str, *, lock: bool = False) -> WorkerRow | None:
    row = await connection.fetchrow(
        f"SELECT {WORKER} FROM workers WHERE worker_id = $1 {'FOR NO KEY UPDATE' if lock else ''}",  # noqa: S608  made of constants
        worker_id,
    )
    return None if row is None else worker_of(row)


def worker_of(row: "asyncpg.Record") -> WorkerRow:
    """Return the worker of a row with the columns `WORKER`."""
    worker = WorkerRow(*row)
    return worker._replace(ordered=DesiredWorkerState(worker.ordered))


decode_worker: Final = Decoder(WorkerRow).decode
"""Return the worker of the column `ENCODED`."""
