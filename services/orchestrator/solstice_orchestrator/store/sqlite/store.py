"""The job store on one SQLite file, shared by the processes of one machine."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from solstice_common.messages import JobCancelV1, JobRequestV1, Priority
from solstice_common.runtime.file_notifier import FileNotifier
from solstice_common.storage.sqlite import SqliteDatabase, migrations_of
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, JobSpec, Outcome, Reason, RunSpec
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.scheduling.workers import (
    OrderRefusal,
    WorkerOrder,
    WorkerPressure,
    WorkerRegistration,
    WorkerState,
    WorkerView,
)
from solstice_orchestrator.store.decisions import plan, steer
from solstice_orchestrator.store.decisions.approve import approve_run
from solstice_orchestrator.store.decisions.finish import AttemptEnd
from solstice_orchestrator.store.decisions.supersede import runs_to_load
from solstice_orchestrator.store.finish_batches import FinishBatcher
from solstice_orchestrator.store.protocol import (
    Admission,
    AttemptKey,
    Cancelled,
    Claim,
    OutboxMessage,
    PlanningTask,
    Purged,
    Renewal,
)
from solstice_orchestrator.store.records.moment import Moment, Rules
from solstice_orchestrator.store.sqlite import admit as intake
from solstice_orchestrator.store.sqlite import cancel, lease, outbox
from solstice_orchestrator.store.sqlite import claim as claiming
from solstice_orchestrator.store.sqlite import purge as purging
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from solstice_orchestrator.store.sqlite.reading import views_of_runs
from solstice_orchestrator.store.sqlite.reading.queries import Clock, SqliteQueries
from solstice_orchestrator.store.sqlite.schedule import SqliteScheduleStore
from solstice_orchestrator.store.sqlite.supersede import ref_history, rerun_scope, settle_groups
from solstice_orchestrator.store.sqlite.tables import workers as workers_table
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    load_jobs,
    load_runs,
    write,
)
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.superseding.push_order import OrderAnswers, OrderQuestion

T = TypeVar("T")


class SqliteStore(SqliteQueries):
    """Keeps the promises of `JobStore`; opened with `SqliteStore.open`."""

    def __init__(
        self, database: SqliteDatabase, file_notifier: FileNotifier, rules: Rules, clock: Clock
    ) -> None:
        super().__init__(database, rules, clock)
        self._notifier = StoreNotifier(file_notifier)
        self._finishing = FinishBatcher(self._finish)
        self.schedule_store = SqliteScheduleStore(
            self._write,
            database.read,
            lambda: Moment(clock(), rules),
            StoreNotifier(FileNotifier(database.path.with_name(f"{database.path.name}.schedule-bells"))),
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, *, rules: Rules, clock: Clock = time.time
    ) -> AsyncIterator["SqliteStore"]:
        """Open the store. Raises StoreUnavailable, SchemaTooNew."""
        migrations = migrations_of("solstice_orchestrator.store.schema.sqlite")
        async with SqliteDatabase.open(path, migrations) as database:
            store = cls(database, FileNotifier(path.with_name(f"{path.name}.bells")), rules, clock)
            try:
                yield store
            finally:
                store._notifier.close()
                store.schedule_store.close()

    async def admit(
        self, requests: Sequence[JobRequestV1], bodies: Sequence[bytes] | None = None
    ) -> Sequence[Admission]:
        if not requests:
            return ()
        if bodies is None:
            bodies = [request.encode() for request in requests]
        return await self._write(lambda transaction: intake.admit(transaction, requests, bodies))

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        return await self._write(lambda transaction: intake.claim_planning(transaction, worker_id, limit))

    async def take_back_planning(self, worker_id: str, claimed: Collection[str]) -> None:
        await self._write(lambda transaction: intake.take_back_planning(transaction, worker_id, claimed))

    async def planned(
        self,
        task: PlanningTask,
        jobs: Sequence[JobSpec],
        run: RunSpec = DEFAULT_RUN_SPEC,
        answers: OrderAnswers | None = None,
    ) -> bool | OrderQuestion:
        plan.check(task, jobs)

        def work(transaction: SqliteTransaction) -> bool | OrderQuestion:
            history = ref_history(transaction, task.request)
            loaded = runs_to_load(task.request, history.open_runs, self._rules.supersede, asked=run.supersede)
            unit = load_runs(transaction, [task.run_id, *(each.run_id for each in loaded)])
            scope = rerun_scope(transaction, task.run_id)
            kept = plan.planned(unit, task, jobs, run, history, rerun_scope=scope, answers=answers)
            write(transaction, unit.changes())
            return kept

        return await self._write(work)

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        def work(transaction: SqliteTransaction) -> bool:
            unit = load_runs(transaction, [task.run_id])
            kept = plan.not_planned(unit, task, reason, detail)
            write(transaction, unit.changes())
            return kept

        return await self._write(work)

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        return await self._write(lambda transaction: claiming.claim(transaction, worker_id, free, limit))

    async def renew(self, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
        return await self._write(lambda transaction: lease.renew(transaction, worker_id, claimed), quiet=True)

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
        return await self._write(lambda transaction: lease.append_log(transaction, key, chunks))

    def finish(self, key: AttemptKey, outcome: Outcome) -> Awaitable[bool]:
        return self._finishing((key, outcome))

    async def rescue(self) -> Sequence[AttemptKey]:
        return await self._write(lease.rescue)

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        def work(transaction: SqliteTransaction) -> JobView | None:
            unit = load_jobs(transaction, [job_id])
            steer.cancel_job(unit, job_id, detail)
            write(transaction, unit.changes())
            return views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        def work(transaction: SqliteTransaction) -> RunView | None:
            unit = load_runs(transaction, [run_id])
            steer.cancel_run(unit, run_id, detail)
            write(transaction, unit.changes())
            return views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        return await self._write(lambda transaction: cancel.cancel(transaction, cancels))

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        def work(transaction: SqliteTransaction) -> JobView | None:
            unit = load_jobs(transaction, [job_id])
            steer.prioritise(unit, job_id, priority)
            write(transaction, unit.changes())
            return views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def approve_run(self, run_id: str) -> RunView | None:
        def work(transaction: SqliteTransaction) -> RunView | None:
            unit = load_runs(transaction, [run_id])
            approve_run(unit, run_id)
            write(transaction, unit.changes())
            return views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def rerun(self, run_id: str) -> RunView | None:
        def work(transaction: SqliteTransaction) -> RunView | None:
            new = intake.rerun(transaction, run_id, None)
            return None if new is None else views_of_runs.run(transaction.connection, new)

        return await self._write(work)

    async def rerun_failed(self, run_id: str) -> RunView | RerunRefusal | None:
        return await self._write(lambda transaction: self._rerun_chosen(transaction, run_id, None))

    async def rerun_job(self, job_id: str) -> RunView | RerunRefusal | None:
        def work(transaction: SqliteTransaction) -> RunView | RerunRefusal | None:
            job = views_of_runs.job(transaction.connection, job_id)
            return None if job is None else self._rerun_chosen(transaction, job.run_id, job_id)

        return await self._write(work)

    @staticmethod
    def _rerun_chosen(
        transaction: SqliteTransaction, run_id: str, job_id: str | None
    ) -> RunView | RerunRefusal | None:
        unit = load_runs(transaction, [run_id])
        if run_id not in unit.runs:
            return None
        only = steer.jobs_to_rerun(unit, run_id, job_id)
        if isinstance(only, RerunRefusal):
            return only
        new = intake.rerun(transaction, run_id, only)
        return None if new is None else views_of_runs.run(transaction.connection, new)

    async def register(self, registration: WorkerRegistration) -> WorkerState:
        return await self._write(
            lambda transaction: workers_table.register(
                transaction.connection, registration, transaction.now, self._rules.lease_seconds
            )
        )

    async def leave(self, worker_id: str) -> None:
        await self._write(
            lambda transaction: workers_table.record_leave(transaction.connection, worker_id, transaction.now)
        )

    async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
        await self._write(
            lambda transaction: workers_table.report(
                transaction.connection, worker_id, pressure, transaction.now
            )
        )

    async def workers(self) -> Sequence[WorkerView]:
        return await self._database.read(
            lambda connection: workers_table.workers(connection, self._clock(), self._rules.lease_seconds)
        )

    async def worker(self, worker_id: str) -> WorkerView | None:
        found = await self._database.read(
            lambda connection: workers_table.workers(
                connection, self._clock(), self._rules.lease_seconds, worker_id=worker_id
            )
        )
        return found[0] if found else None

    async def steer_worker(self, worker_id: str, order: WorkerOrder) -> WorkerView | OrderRefusal | None:
        return await self._write(
            lambda transaction: workers_table.steer(
                transaction.connection, worker_id, order, transaction.now, self._rules.lease_seconds
            )
        )

    async def outbox(self, limit: int) -> Sequence[OutboxMessage]:
        if not await self._database.read(outbox.has_messages):
            return ()
        return await self._write(lambda transaction: outbox.oldest_messages(transaction, limit), quiet=True)

    async def published(self, numbers: Sequence[int]) -> None:
        await self._write(lambda transaction: outbox.forget_published(transaction, numbers), quiet=True)

    async def purgeable(self, older_than_seconds: float) -> int:
        return await self._database.read(
            lambda connection: purging.purgeable(connection, self._clock() - older_than_seconds)
        )

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        return await self._write(
            lambda transaction: purging.purge(transaction, older_than_seconds, limit), quiet=True
        )

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        async with self._notifier.listen() as event:
            yield event

    async def _finish(self, group: Sequence[AttemptEnd]) -> Sequence[bool]:
        return await self._write(lambda transaction: lease.finish(transaction, group))

    async def _write(self, work: Callable[[SqliteTransaction], T], *, quiet: bool = False) -> T:
        """Carry out `work`, and notify listeners if it changed anything.

        `quiet` work does not notify.
        """

        def counted(connection: sqlite3.Connection) -> tuple[T, bool]:
            before = connection.total_changes
            transaction = SqliteTransaction(connection=connection, moment=Moment(self._clock(), self._rules))
            result = work(transaction)
            settle_groups(transaction)
            return result, connection.total_changes > before

        result, changed = await self._database.write(counted)
        if changed and not quiet:
            self._notifier.notify()
        return result
