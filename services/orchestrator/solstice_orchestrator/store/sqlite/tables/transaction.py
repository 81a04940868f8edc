"""One transaction of the SQLite store: it loads rows and writes a decision's changes."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from msgspec import structs

from solstice_common.messages.states import JobState, RunState
from solstice_common.storage.sqlite import insert_many
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.statuses import Status
from solstice_orchestrator.scheduling.order import ClaimExclusions, QueueState, exclusions_of
from solstice_orchestrator.store.decisions.start_tags import (
    QueueKey,
    RepositoryQueueKey,
    arrange,
    jobs_by_queue,
    still_running,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.outbox.batches import OutboxBatch, pack
from solstice_orchestrator.store.records.changes import (
    JOB_CHANGES,
    RUN_CHANGES,
    Attempt,
    ChunkRow,
    Job,
    OutputsRow,
    RefRun,
    RequestDeadLetter,
    RowChanges,
    Run,
)
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.sqlite.tables import start_limits
from solstice_orchestrator.store.sqlite.tables.worker_table import note_ends

T = TypeVar("T")

REQUEST: Final = "(SELECT body FROM requests WHERE requests.age = runs.age) AS request"
"""A column for each statement about `runs` whose rows need the request."""

RUN: Final = ", ".join((*Run.__struct_fields__[:-1], REQUEST))
JOB: Final = ", ".join(Job.__struct_fields__)
ATTEMPT: Final = ", ".join(Attempt._fields)

RUN_STATES: Final = {state.value: state for state in RunState}
JOB_STATES: Final = {state.value: state for state in JobState}
REASONS: Final = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTransaction:
    """One transaction at one moment, carried out wholly or not at all."""

    connection: sqlite3.Connection
    moment: Moment
    groups: set[bytes] = field(default_factory=set)
    """Concurrency groups to settle before it ends."""

    @property
    def now(self) -> float:
        return self.moment.now

    @property
    def rules(self) -> StoreRules:
        return self.moment.rules


def load_runs(
    transaction: SqliteTransaction, run_ids: Iterable[str], job_ids: Iterable[str] = ()
) -> UnitOfWork:
    """Load these runs with all their jobs, and these jobs with their runs."""
    execute, whole = transaction.connection.execute, list(run_ids)
    jobs = [
        job_of(row)
        for row in execute(
            f"SELECT {JOB} FROM jobs WHERE run_id IN (SELECT value FROM json_each(?))"  # noqa: S608  made of constants
            " OR job_id IN (SELECT value FROM json_each(?)) ORDER BY run_id, position",
            (json.dumps(whole), json.dumps(list(job_ids))),
        )
    ]
    runs = execute(
        f"SELECT {RUN} FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",  # noqa: S608  made of constants
        (json.dumps(list({*whole, *(job.run_id for job in jobs)})),),
    )
    # The attempts that a dead letter would report.
    failed = [job.job_id for job in jobs if job.failures or job.state is JobState.ERRORED]
    return UnitOfWork(transaction.moment, map(run_of, runs), jobs, attempts_of(transaction, failed))


def change_runs(
    transaction: SqliteTransaction, run_ids: Iterable[str], decide: Callable[[UnitOfWork], T]
) -> T:
    """Load these runs, write what is decided, and return the decision's answer."""
    unit = load_runs(transaction, run_ids)
    answer = decide(unit)
    write(transaction, unit.changes())
    return answer


def load_jobs(transaction: SqliteTransaction, job_ids: Iterable[str]) -> UnitOfWork:
    """Load the runs of these jobs, with all their jobs."""
    rows = transaction.connection.execute(
        "SELECT DISTINCT run_id FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(job_ids)),),
    )
    return load_runs(transaction, [row["run_id"] for row in rows])


def attempts_of(transaction: SqliteTransaction, job_ids: Sequence[str]) -> Sequence[Attempt]:
    """Return the ended attempts of these jobs, oldest first."""
    if not job_ids:
        return ()
    rows = transaction.connection.execute(
        f"SELECT {ATTEMPT} FROM attempts WHERE job_id IN (SELECT value FROM json_each(?)) ORDER BY job_id, number",  # noqa: S608  made of constants
        (json.dumps(job_ids),),
    )
    return [Attempt(row[0], row[1], row[2], JOB_STATES[row[3]], REASONS[row[4]], *row[5:]) for row in rows]


def run_of(row: sqlite3.Row) -> Run:
    """Return the run of a row with the columns `RUN`."""
    return Run(RUN_STATES[row[0]], *row[1:])


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row with the columns `JOB`."""
    return Job(JOB_STATES[row[0]], REASONS[row[1]], *row[2:])


def write(transaction: SqliteTransaction, changes: RowChanges) -> None:
    """Write a decision's changes."""
    connection = transaction.connection
    if changes.arrivals or changes.given_up:
        changes = _arrange(transaction, changes)
    for run in changes.runs:
        connection.execute(_UPDATE_RUN, (*_values(run, RUN_CHANGES), run.run_id))
    for job in changes.jobs:
        connection.execute(_UPDATE_JOB, (*_values(job, JOB_CHANGES), job.job_id))
    insert_many(
        connection,
        f"INSERT INTO jobs ({JOB}, spec) VALUES",
        [(*structs.astuple(job), changes.specs[job.job_id]) for job in changes.new_jobs],
    )
    insert_many(connection, f"INSERT INTO attempts ({ATTEMPT}) VALUES", changes.attempts)
    insert_log(connection, changes.log_rows)
    insert_many(connection, f"INSERT INTO outputs ({', '.join(OutputsRow._fields)}) VALUES", changes.outputs)
    insert_many(connection, f"INSERT INTO ref_runs ({', '.join(RefRun._fields)}) VALUES", changes.ref_runs)
    note_ends(connection, changes.attempts, changes.jobs, transaction.now)
    insert_messages(connection, changes.statuses, changes.dead_letters)
    transaction.groups.update(changes.groups)


def insert_log(connection: sqlite3.Connection, rows: Sequence[ChunkRow]) -> None:
    """Insert chunks of logs; stored ones stay as they are."""
    own = [row for row in rows if not row.service]
    insert_many(
        connection,
        "INSERT INTO log_chunks (job_id, attempt, sequence, at, data) VALUES",
        [row[:5] for row in own],
        "ON CONFLICT DO NOTHING",
    )
    insert_many(
        connection,
        "INSERT INTO log_marks (job_id, attempt, sequence, kind) VALUES",
        [(*row[:3], row.kind) for row in own if row.kind is not None],
        "ON CONFLICT DO NOTHING",
    )
    insert_many(
        connection,
        f"INSERT INTO service_log_chunks ({', '.join(ChunkRow._fields)}) VALUES",
        [row for row in rows if row.service],
        "ON CONFLICT DO NOTHING",
    )


def insert_messages(
    connection: sqlite3.Connection, statuses: Sequence[Status], dead_letters: Sequence[RequestDeadLetter] = ()
) -> None:
    """Insert messages into the outbox."""
    insert_many(
        connection,
        f"INSERT INTO outbox ({', '.join(OutboxBatch._fields)}) VALUES",
        pack(statuses, dead_letters),
    )


def _arrange(transaction: SqliteTransaction, changes: RowChanges) -> RowChanges:
    """Return the changes with start tags for jobs that start to wait."""
    execute = transaction.connection.execute
    by_queue = jobs_by_queue(changes)
    excluded = ClaimExclusions()
    if transaction.rules.limits.by_sender:
        budget = start_limits.load_budget(transaction.connection, transaction.moment)
        excluded = exclusions_of(
            replace(budget, running=still_running(budget.running, changes)).all_remaining()
        )
    queues = {
        queue_key: _queue(transaction, queue_key, excluded)
        for queue_key in dict.fromkeys(repository_queue.queue_key for repository_queue in by_queue)
    }
    known = {}
    for repository_queue in by_queue:
        row = execute(
            "SELECT next_tag FROM next_tags WHERE label = ? AND priority = ? AND repository = ?",
            (*repository_queue.queue_key, repository_queue.repository),
        ).fetchone()
        if row is not None:
            known[repository_queue] = int(row["next_tag"])
    arranged = arrange(changes, queues, known)
    for queue_key, clock in arranged.clocks.items():
        execute("INSERT OR REPLACE INTO clocks VALUES (?, ?, ?)", (*queue_key, clock))
    for repository_queue, next_tag in arranged.next_tags.items():
        _store_next_tag(transaction, repository_queue, next_tag)
    return arranged.changes


def _store_next_tag(
    transaction: SqliteTransaction, repository_queue: RepositoryQueueKey, next_tag: int
) -> None:
    transaction.connection.execute(
        "INSERT OR REPLACE INTO next_tags VALUES (?, ?, ?, ?)",
        (*repository_queue.queue_key, repository_queue.repository, next_tag),
    )


def _queue(transaction: SqliteTransaction, queue_key: QueueKey, excluded: ClaimExclusions) -> QueueState:
    execute = transaction.connection.execute
    clock = execute("SELECT clock FROM clocks WHERE label = ? AND priority = ?", queue_key).fetchone()
    first = execute(
        "SELECT start_tag, (SELECT next_tag FROM next_tags WHERE label = runs_on AND next_tags.priority = jobs.priority"
        " AND next_tags.repository = jobs.repository) AS next_tag FROM jobs"
        " WHERE state = 'waiting' AND runs_on = ? AND priority = ?"
        " AND repository NOT IN (SELECT value FROM json_each(?))"
        " AND owner NOT IN (SELECT value FROM json_each(?)) ORDER BY start_tag, age LIMIT 1",
        (*queue_key, json.dumps(list(excluded.repositories)), json.dumps(list(excluded.owners))),
    ).fetchone()
    largest = 0
    if first is None:
        # No job waits: the start tags that repositories used are forgotten.
        gone = execute("DELETE FROM next_tags WHERE label = ? AND priority = ? RETURNING next_tag", queue_key)
        largest = max((row["next_tag"] for row in gone.fetchall()), default=0)
    return QueueState(
        clock=clock["clock"] if clock else 0,
        first_tag=first and first["start_tag"],
        first_next_tag=(first and first["next_tag"]) or 0,
        largest_next_tag=largest,
    )


def _values(row: Run | Job, columns: Sequence[str]) -> list[Any]:
    return [getattr(row, column) for column in columns]


_UPDATE_RUN: Final = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_CHANGES)} WHERE run_id = ?"  # noqa: S608  made of constants
_UPDATE_JOB: Final = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in JOB_CHANGES)} WHERE job_id = ?"  # noqa: S608  made of constants
