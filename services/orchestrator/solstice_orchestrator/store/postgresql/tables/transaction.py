"""One transaction of the PostgreSQL store: it locks and loads rows, and writes changes.

Locks are taken in one order to avoid deadlocks: runs by their ids, then jobs by run and position, then what start tags
depend on. Claims take theirs in any order, and wait for none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.order import ClaimExclusions, QueueState, exclusions_of
from solstice_orchestrator.store.decisions.start_tags import (
    QueueKey,
    RepositoryQueueKey,
    arrange,
    jobs_by_queue,
    still_running,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.postgresql.tables import start_limits, worker_table
from solstice_orchestrator.store.postgresql.tables.clock import EstimatedClock
from solstice_orchestrator.store.postgresql.tables.columns import ATTEMPT, JOB, NOW, RUN
from solstice_orchestrator.store.postgresql.tables.writing import statement_of
from solstice_orchestrator.store.records.attempts import ENDED_ATTEMPTS
from solstice_orchestrator.store.records.changes import Attempt, Job, RowChanges, Run
from solstice_orchestrator.store.records.moment import Moment, StoreRules

if TYPE_CHECKING:
    import asyncpg

    from solstice_common.storage.postgresql import Connection

T = TypeVar("T")

CHANGE: Final = "FOR NO KEY UPDATE"
KEEP: Final = "FOR KEY SHARE"
"""Locks of rows: to change them, or only to keep them from being removed."""

_RUN_WIDTH: Final = len(Run.__struct_fields__)
_JOB_WIDTH: Final = len(Job.__struct_fields__)
_RUN_STATES: Final = {state.value: state for state in RunState}
_JOB_STATES: Final = {state.value: state for state in JobState}
_REASONS: Final = {reason.value: reason for reason in Reason}


@dataclass(slots=True, kw_only=True)
class PostgreSQLTransaction:
    """One transaction at one moment, carried out wholly or not at all."""

    connection: "Connection"
    rules: StoreRules
    clock: EstimatedClock
    test_now: float | None = None
    """The moment, where a test sets the clock; else the database's clock decides."""
    groups: set[bytes] = field(default_factory=set)
    """Concurrency groups to settle after it has ended."""
    changed: bool = False
    """Whether it wrote anything that listeners want to know."""

    async def now(self) -> float:
        """Return the time of the database's clock."""
        if self.test_now is not None:
            return self.test_now
        now = float(await self.connection.fetchval(f"SELECT {NOW}"))
        self.clock.hear(now)
        return now

    def moment(self, row: "asyncpg.Record | None") -> Moment:
        """Return the moment at which a row with a column `now` was read.

        Without a row there is nothing to decide, and any moment will do.
        """
        if self.test_now is not None:
            return Moment(self.test_now, self.rules)
        if row is None:
            return Moment(0.0, self.rules)
        now: float = row["now"]
        self.clock.hear(now)
        return Moment(now, self.rules)


async def load_runs(
    transaction: PostgreSQLTransaction, run_ids: Iterable[str], *, lock: str = CHANGE
) -> UnitOfWork:
    """Lock and load these runs with all their jobs."""
    fetch = transaction.connection.fetch
    runs = await fetch(
        f"SELECT {RUN}, {NOW} AS now FROM runs JOIN requests USING (run_id)"  # noqa: S608  made of constants
        f" WHERE runs.run_id = ANY($1) ORDER BY runs.run_id {lock} OF runs",
        list(run_ids),
    )
    # A separate statement: it sees what was committed while the first one waited for the runs' locks.
    jobs = await fetch(
        f"SELECT {JOB} FROM jobs WHERE run_id = ANY($1) ORDER BY run_id, position {lock}",  # noqa: S608  made of constants
        [row["run_id"] for row in runs],
    )
    moment = transaction.moment(runs[0] if runs else None)
    return await _load(transaction, moment, map(run_of, runs), map(job_of, jobs))


async def change_runs(
    transaction: PostgreSQLTransaction, run_ids: Iterable[str], decide: Callable[[UnitOfWork], T]
) -> T:
    """Lock and load these runs, write what is decided, and return the decision's answer."""
    unit = await load_runs(transaction, run_ids)
    answer = decide(unit)
    await write(transaction, unit.changes())
    return answer


async def load_jobs(transaction: PostgreSQLTransaction, job_ids: Iterable[str]) -> UnitOfWork:
    """Lock and load the runs of these jobs, with all their jobs."""
    rows = await transaction.connection.fetch(
        # One statement is enough, as a run with jobs gets no new ones. Each row is locked, so its values are current.
        f"SELECT {JOB}, {_RUN_ONCE}, {NOW} AS now FROM runs JOIN requests USING (run_id) JOIN jobs USING (run_id)"  # noqa: S608  made of constants
        " WHERE runs.run_id = ANY(ARRAY("
        "SELECT run_id FROM jobs AS named WHERE named.job_id = ANY(string_to_array($1, E'\\n'))))"
        " ORDER BY runs.run_id, jobs.position FOR NO KEY UPDATE OF runs, jobs",
        "\n".join(job_ids),
    )
    runs = [run_of(row[_JOB_WIDTH:]) for row in rows if row["position"] == 0]
    moment = transaction.moment(rows[0] if rows else None)
    return await _load(transaction, moment, runs, map(job_of, rows))


async def load_ending(
    transaction: PostgreSQLTransaction, job_ids: Sequence[str]
) -> tuple[UnitOfWork, Sequence[str]]:
    """Lock and load these running jobs and their runs; return also which runs go on.

    A run goes on while another of its jobs is running and none is blocked. Of other runs, all jobs are loaded.
    """
    fetch = transaction.connection.fetch
    runs = await fetch(
        f"SELECT {RUN}, {NOW} AS now FROM runs JOIN requests USING (run_id)"  # noqa: S608  made of constants
        " WHERE runs.run_id = ANY(ARRAY(SELECT run_id FROM jobs WHERE job_id = ANY($1)))"
        " ORDER BY runs.run_id FOR NO KEY UPDATE OF runs",
        job_ids,
    )
    run_ids = [row["run_id"] for row in runs]
    # A separate statement: it sees the ends that were committed while the first one waited for the runs' locks. No
    # running job of a run ends, and none is blocked, without these locks.
    jobs = await fetch(_ENDING, job_ids, run_ids)
    whole = {row["run_id"] for row in jobs if row["of_whole_run"]}
    moment = transaction.moment(runs[0] if runs else None)
    unit = await _load(transaction, moment, map(run_of, runs), map(job_of, jobs))
    return unit, [run_id for run_id in run_ids if run_id not in whole]


_ENDING: Final = f"""
WITH whole AS MATERIALIZED (
    SELECT run_id FROM unnest($2::text[]) AS run (run_id) WHERE
    EXISTS (SELECT 1 FROM jobs AS other WHERE other.run_id = run.run_id AND state = 'blocked')
    OR NOT EXISTS (
        SELECT 1 FROM jobs AS other WHERE other.run_id = run.run_id AND state = 'running' AND job_id <> ALL($1)))
SELECT {JOB}, run_id = ANY(ARRAY(SELECT run_id FROM whole)) AS of_whole_run FROM jobs
WHERE job_id = ANY($1::text[]) OR run_id = ANY(ARRAY(SELECT run_id FROM whole))
ORDER BY run_id, position FOR NO KEY UPDATE OF jobs
"""  # noqa: S608  made of constants


async def _load(
    transaction: PostgreSQLTransaction, moment: Moment, runs: Iterable[Run], jobs: Iterable[Job]
) -> UnitOfWork:
    jobs = list(jobs)
    # The attempts that a dead letter would report.
    failed = [job.job_id for job in jobs if job.failures or job.state is JobState.ERRORED]
    return UnitOfWork(moment, runs, jobs, await attempts_of(transaction, failed))


_RUN_ONCE: Final = RUN.replace(
    "requests.body AS request", "CASE jobs.position WHEN 0 THEN requests.body END AS request"
)
"""Only a run's first job carries the run's request."""


async def attempts_of(transaction: PostgreSQLTransaction, job_ids: Sequence[str]) -> Sequence[Attempt]:
    """Return the ended attempts of these jobs, oldest first."""
    if not job_ids:
        return ()
    rows = await transaction.connection.fetch(
        f"SELECT {ATTEMPT} FROM {ENDED_ATTEMPTS} WHERE job_id = ANY($1) ORDER BY job_id, number",  # noqa: S608  made of constants
        list(job_ids),
    )
    return [Attempt(row[0], row[1], row[2], _JOB_STATES[row[3]], _REASONS[row[4]], *row[5:]) for row in rows]


def run_of(row: Any) -> Run:
    """Return the run of a row that begins with the columns `RUN`."""
    return Run(_RUN_STATES[row[0]], *row[1:_RUN_WIDTH])


def job_of(row: Any) -> Job:
    """Return the job of a row that begins with the columns `JOB`."""
    return Job(_JOB_STATES[row[0]], _REASONS[row[1]], *row[2:_JOB_WIDTH])


def job_state(word: str) -> JobState:
    """Return the state of that name."""
    return _JOB_STATES[word]


async def write(transaction: PostgreSQLTransaction, changes: RowChanges) -> None:
    """Write a decision's changes."""
    if changes.arrivals or changes.given_up:
        changes = await _arrange(transaction, changes)
    written = statement_of(changes)
    if written is not None:
        statement, arrays = written
        await transaction.connection.execute(statement, *arrays)
        transaction.changed = True
    transaction.groups.update(changes.groups)
    if changes.attempts:
        await worker_table.note_troubles(
            transaction.connection, changes.attempts, changes.jobs, changes.attempts[0].finished_at
        )


async def _arrange(transaction: PostgreSQLTransaction, changes: RowChanges) -> RowChanges:
    """Return the changes with start tags for jobs that start to wait."""
    execute, fetch = transaction.connection.execute, transaction.connection.fetch
    by_queue = jobs_by_queue(changes)
    queue_keys = list(dict.fromkeys(repository_queue.queue_key for repository_queue in by_queue))
    labels, priorities = (
        [queue_key.label for queue_key in queue_keys],
        [queue_key.priority for queue_key in queue_keys],
    )
    # One transaction at a time adds jobs to a queue; the sorted queues are locked in one order.
    await execute(
        "INSERT INTO clocks SELECT *, 0 FROM unnest($1::text[], $2::integer[]) ON CONFLICT DO NOTHING",
        labels,
        priorities,
    )
    clocks = {
        QueueKey(row["label"], row["priority"]): row["clock"]
        for row in await fetch(
            "SELECT label, priority, clock FROM clocks"
            " WHERE (label, priority) IN (SELECT * FROM unnest($1::text[], $2::integer[]))"
            " ORDER BY label, priority FOR NO KEY UPDATE",
            labels,
            priorities,
        )
    }
    excluded = ClaimExclusions()
    if transaction.rules.limits.by_sender:
        budget = await start_limits.load_budget(
            transaction.connection, transaction.rules, transaction.test_now
        )
        excluded = exclusions_of(
            replace(budget, running=still_running(budget.running, changes)).all_remaining()
        )
    queues = {
        queue_key: await _queue(transaction, queue_key, clocks[queue_key], excluded)
        for queue_key in queue_keys
    }
    known = {
        RepositoryQueueKey(QueueKey(row["label"], row["priority"]), row["repository"]): row["next_tag"]
        for row in await fetch(
            "SELECT * FROM next_tags"
            " WHERE (label, priority, repository) IN (SELECT * FROM unnest($1::text[], $2::integer[], $3::text[]))",
            *_columns_of(by_queue),
        )
    }
    arranged = arrange(changes, queues, known)
    await execute(
        "UPDATE clocks SET clock = new.clock FROM unnest($1::text[], $2::integer[], $3::bigint[])"
        " AS new (label, priority, clock) WHERE clocks.label = new.label AND clocks.priority = new.priority"
        " AND clocks.clock <> new.clock",
        [queue_key.label for queue_key in arranged.clocks],
        [queue_key.priority for queue_key in arranged.clocks],
        list(arranged.clocks.values()),
    )
    await execute(
        "INSERT INTO next_tags SELECT * FROM unnest($1::text[], $2::integer[], $3::text[], $4::bigint[])"
        " ON CONFLICT (label, priority, repository) DO UPDATE SET next_tag = excluded.next_tag",
        *_columns_of(arranged.next_tags),
        list(arranged.next_tags.values()),
    )
    return arranged.changes


async def _queue(
    transaction: PostgreSQLTransaction, queue_key: QueueKey, clock: int, excluded: ClaimExclusions
) -> QueueState:
    first = await transaction.connection.fetchrow(
        "SELECT start_tag, (SELECT next_tag FROM next_tags WHERE label = runs_on AND next_tags.priority = jobs.priority"
        " AND next_tags.repository = jobs.repository) AS next_tag FROM jobs"
        " WHERE state = 'waiting' AND runs_on = $1 AND priority = $2 AND repository <> ALL($3) AND owner <> ALL($4)"
        " ORDER BY start_tag, job_id LIMIT 1",
        queue_key.label,
        queue_key.priority,
        list(excluded.repositories),
        list(excluded.owners),
    )
    if first is not None:
        return QueueState(clock=clock, first_tag=first["start_tag"], first_next_tag=first["next_tag"] or 0)
    # No job waits: the start tags that repositories used are forgotten.
    gone = await transaction.connection.fetch(
        "DELETE FROM next_tags WHERE label = $1 AND priority = $2 RETURNING next_tag",
        queue_key.label,
        queue_key.priority,
    )
    return QueueState(clock=clock, largest_next_tag=max((row["next_tag"] for row in gone), default=0))


def _columns_of(keys: Iterable[RepositoryQueueKey]) -> tuple[list[str], list[int], list[str]]:
    listed = list(keys)
    return (
        [repository_queue.queue_key.label for repository_queue in listed],
        [repository_queue.queue_key.priority for repository_queue in listed],
        [repository_queue.repository for repository_queue in listed],
    )
