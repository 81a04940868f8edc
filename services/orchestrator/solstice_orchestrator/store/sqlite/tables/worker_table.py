"""Loads and writes workers in the SQLite store, with the effects of ended attempts."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

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
    healthy_ends,
    registered,
    steered,
    worker_view,
)
from solstice_orchestrator.store.records.changes import Attempt, Job

WORKER: Final = ", ".join(WorkerRow._fields)
_MARKS: Final = ", ".join("?" * len(WorkerRow._fields))


def record_heartbeat(connection: sqlite3.Connection, worker_id: str, now: float) -> WorkerRow:
    """Record the worker's heartbeat, and return its row."""
    row = connection.execute(
        "INSERT INTO workers (worker_id, started_at, seen_at) VALUES (?1, ?2, ?2)"  # noqa: S608  made of constants
        f" ON CONFLICT (worker_id) DO UPDATE SET seen_at = ?2, ended_at = NULL RETURNING {WORKER}",
        (worker_id, now),
    ).fetchone()
    return _worker(row)


def record_claim(connection: sqlite3.Connection, worker_id: str, now: float, lease_seconds: float) -> None:
    """Record that the worker claims, which makes it known.

    This is no heartbeat while the worker has one: heartbeats alone renew leases, so that no lease outlives the proof
    that its holder is alive.
    """
    connection.execute(
        "INSERT INTO workers (worker_id, started_at, seen_at) VALUES (?1, ?2, ?2)"
        " ON CONFLICT (worker_id) DO UPDATE SET seen_at = ?2, ended_at = NULL"
        " WHERE seen_at <= ?3 OR ended_at IS NOT NULL",
        (worker_id, now, now - lease_seconds),
    )


def takes_jobs(connection: sqlite3.Connection, worker_id: str, now: float) -> bool:
    """Return whether the worker gets jobs or planning; one that never registered does."""
    worker = find_worker(connection, worker_id)
    return worker is None or may_claim(worker.eligibility, now)


def register(
    connection: sqlite3.Connection, registration: WorkerRegistration, now: float, lease_seconds: float
) -> WorkerState:
    namesakes = [
        _worker(row)
        for row in connection.execute(
            f"SELECT {WORKER} FROM workers WHERE name = ? AND worker_id <> ?",  # noqa: S608  made of constants
            (registration.name, registration.worker_id),
        )
    ]
    worker = registered(registration, find_worker(connection, registration.worker_id), namesakes, now)
    _keep(connection, worker)
    connection.execute(
        "DELETE FROM workers WHERE worker_id IN (SELECT value FROM json_each(?))",
        (json.dumps(forgotten_with(namesakes, now, lease_seconds)),),
    )
    return state_at(worker.eligibility, now)


def record_leave(connection: sqlite3.Connection, worker_id: str, now: float) -> None:
    connection.execute(
        "UPDATE workers SET seen_at = ?2, ended_at = ?2 WHERE worker_id = ?1", (worker_id, now)
    )


def report(connection: sqlite3.Connection, worker_id: str, pressure: WorkerPressure, now: float) -> None:
    refuses = pressure.refuses and pressure.refuses.value
    connection.execute(
        "UPDATE workers SET shrunk_to = ?, refuses = ?, refusal = ?, condition_at = ? WHERE worker_id = ?",
        (pressure.shrunk_to, refuses, pressure.refusal, now, worker_id),
    )


def steer(
    connection: sqlite3.Connection, worker_id: str, order: WorkerOrder, now: float, lease_seconds: float
) -> WorkerView | OrderRefusal | None:
    worker = find_worker(connection, worker_id)
    if worker is None:
        return None
    steered_worker = steered(worker, order, now, lease_seconds)
    if isinstance(steered_worker, OrderRefusal):
        return steered_worker
    _keep(connection, steered_worker)
    (view,) = workers(connection, now, lease_seconds, worker_id=worker_id)
    return view


def workers(
    connection: sqlite3.Connection, now: float, lease_seconds: float, *, worker_id: str | None = None
) -> Sequence[WorkerView]:
    """Return all workers, or this one; by name, newest of a name first."""
    jobs_by_worker: dict[str, list[WorkerJob]] = {}
    for job in connection.execute(
        "SELECT worker_id, job_id, name, runs_on, attempt, started_at FROM jobs"
        " WHERE finished_at IS NULL AND state = 'running' ORDER BY started_at, age"
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
    rows = connection.execute(
        f"SELECT {WORKER} FROM workers WHERE seen_at > ?1 AND (?2 IS NULL OR worker_id = ?2)"  # noqa: S608  made of constants
        " ORDER BY CASE name WHEN '' THEN worker_id ELSE name END, started_at DESC, worker_id",
        (now - FORGET_SECONDS, worker_id),
    )
    return [
        worker_view(worker, jobs_by_worker.get(worker.worker_id, ()), now, lease_seconds)
        for worker in map(_worker, rows.fetchall())
    ]


def note_ends(
    connection: sqlite3.Connection, attempts: Iterable[Attempt], jobs: Sequence[Job], now: float
) -> None:
    """Update the workers' failures after these attempts, at some of `jobs`."""
    attempts = tuple(attempts)
    healthy = healthy_ends(attempts)
    if healthy:
        connection.execute(
            "UPDATE workers SET failures = 0, causes = '[]'"
            " WHERE failures > 0 AND worker_id IN (SELECT value FROM json_each(?))",
            (json.dumps(healthy),),
        )
    for worker_id, ended in counted_failures(attempts).items():
        worker = find_worker(connection, worker_id)
        if worker is not None:
            _keep(connection, after_ends(worker, ended, jobs, now))


def forget_workers(connection: sqlite3.Connection, now: float, lease_seconds: float) -> None:
    """Delete workers that are long gone, or replaced by another of their name."""
    connection.execute(
        "DELETE FROM workers AS gone WHERE seen_at <= ?1 OR seen_at <= ?2 AND name <> '' AND EXISTS"
        " (SELECT 1 FROM workers WHERE name = gone.name AND seen_at > ?2 AND started_at >= gone.started_at)",
        (now - FORGET_SECONDS, now - lease_seconds),
    )


def find_worker(connection: sqlite3.Connection, worker_id: str) -> WorkerRow | None:
    row = connection.execute(
        f"SELECT {WORKER} FROM workers WHERE worker_id = ?",  # noqa: S608  made of constants
        (worker_id,),
    ).fetchone()
    return None if row is None else _worker(row)


def _keep(connection: sqlite3.Connection, worker: WorkerRow) -> None:
    connection.execute(f"INSERT OR REPLACE INTO workers ({WORKER}) VALUES ({_MARKS})", worker)  # noqa: S608  made of constants


def _worker(row: sqlite3.Row) -> WorkerRow:
    worker = WorkerRow(*row)
    return worker._replace(ordered=DesiredWorkerState(worker.ordered))
