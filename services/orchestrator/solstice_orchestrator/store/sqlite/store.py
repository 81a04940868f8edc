"""The job store on one SQLite file, shared by the processes of one machine."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from solstice_common.messages import JobCancelV1, JobRequestV1, Priority
from solstice_common.runtime.file_notifier import Doorbell
from solstice_common.storage.sqlite import Database, migrations_of
from solstice_orchestrator.domain.jobs import NOTHING_SAID, JobSpec, Outcome, Reason, RunSpec
from solstice_orchestrator.domain.reruns import NotRerun
from solstice_orchestrator.scheduling.workers import (
    Condition,
    NotObeyed,
    Order,
    WorkerCard,
    WorkerState,
    WorkerView,
)
from solstice_orchestrator.store.decisions import plan, steer
from solstice_orchestrator.store.decisions.approve import approve_run
from solstice_orchestrator.store.decisions.finish import End
from solstice_orchestrator.store.decisions.supersede import rivals
from solstice_orchestrator.store.finish_batches import Finishing
from solstice_orchestrator.store.protocol import (
    Admission,
    AttemptKey,
    Cancelled,
    Claim,
    PlanningTask,
    Purged,
    Renewal,
    Tiding,
)
from solstice_orchestrator.store.records.moment import Moment, Rules
from solstice_orchestrator.store.sqlite import admit as intake
from solstice_orchestrator.store.sqlite import cancel, lease, outbox
from solstice_orchestrator.store.sqlite import claim as claiming
from solstice_orchestrator.store.sqlite import purge as purging
from solstice_orchestrator.store.sqlite.notifier import Bell
from solstice_orchestrator.store.sqlite.reading import views_of_runs
from solstice_orchestrator.store.sqlite.reading.queries import Clock, SqliteQueries
from solstice_orchestrator.store.sqlite.schedule import SqliteTimetable
from solstice_orchestrator.store.sqlite.supersede import again, kin_of, settle_groups
from solstice_orchestrator.store.sqlite.tables import workers as roster
from solstice_orchestrator.store.sqlite.tables.transaction import (
    Transaction,
    ledger_of_jobs,
    ledger_of_runs,
    write,
)
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.superseding.push_order import Answers, Question

T = TypeVar("T")


class SqliteStore(SqliteQueries):
    """Keeps the promises of `JobStore`; opened with `SqliteStore.open`."""

    def __init__(self, database: Database, doorbell: Doorbell, rules: Rules, clock: Clock) -> None:
        super().__init__(database, rules, clock)
        self._bell = Bell(doorbell)
        self._finishing = Finishing(self._finish)
        self.timetable = SqliteTimetable(
            self._write,
            database.read,
            lambda: Moment(clock(), rules),
            Bell(Doorbell(database.path.with_name(f"{database.path.name}.schedule-bells"))),
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, *, rules: Rules, clock: Clock = time.time
    ) -> AsyncIterator["SqliteStore"]:
        """Raises StoreUnavailable, SchemaTooNew."""
        migrations = migrations_of("solstice_orchestrator.store.schema.sqlite")
        async with Database.open(path, migrations) as database:
            store = cls(database, Doorbell(path.with_name(f"{path.name}.bells")), rules, clock)
            try:
                yield store
            finally:
                store._bell.close()
                store.timetable.close()

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

    async def take_back_planning(self, worker_id: str, held: Collection[str]) -> None:
        await self._write(lambda transaction: intake.take_back_planning(transaction, worker_id, held))

    async def planned(
        self,
        task: PlanningTask,
        jobs: Sequence[JobSpec],
        run: RunSpec = NOTHING_SAID,
        answers: Answers | None = None,
    ) -> bool | Question:
        plan.check(task, jobs)

        def work(transaction: Transaction) -> bool | Question:
            known = kin_of(transaction, task.request)
            kin = rivals(task.request, known.kin, self._rules.supersede, asked=run.supersede)
            ledger = ledger_of_runs(transaction, [task.run_id, *(each.run_id for each in kin)])
            asked = again(transaction, task.run_id)
            kept = plan.planned(ledger, task, jobs, run, known, again=asked, answers=answers)
            write(transaction, ledger.changes())
            return kept

        return await self._write(work)

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        def work(transaction: Transaction) -> bool:
            ledger = ledger_of_runs(transaction, [task.run_id])
            kept = plan.not_planned(ledger, task, reason, detail)
            write(transaction, ledger.changes())
            return kept

        return await self._write(work)

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        return await self._write(lambda transaction: claiming.claim(transaction, worker_id, free, limit))

    async def renew(self, worker_id: str, held: Sequence[AttemptKey]) -> Renewal:
        return await self._write(lambda transaction: lease.renew(transaction, worker_id, held), quiet=True)

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
        return await self._write(lambda transaction: lease.append_log(transaction, key, chunks))

    def finish(self, key: AttemptKey, outcome: Outcome) -> Awaitable[bool]:
        return self._finishing((key, outcome))

    async def rescue(self) -> Sequence[AttemptKey]:
        return await self._write(lease.rescue)

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        def work(transaction: Transaction) -> JobView | None:
            ledger = ledger_of_jobs(transaction, [job_id])
            steer.cancel_job(ledger, job_id, detail)
            write(transaction, ledger.changes())
            return views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        def work(transaction: Transaction) -> RunView | None:
            ledger = ledger_of_runs(transaction, [run_id])
            steer.cancel_run(ledger, run_id, detail)
            write(transaction, ledger.changes())
            return views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        return await self._write(lambda transaction: cancel.cancel(transaction, cancels))

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        def work(transaction: Transaction) -> JobView | None:
            ledger = ledger_of_jobs(transaction, [job_id])
            steer.prioritise(ledger, job_id, priority)
            write(transaction, ledger.changes())
            return views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def approve_run(self, run_id: str) -> RunView | None:
        def work(transaction: Transaction) -> RunView | None:
            ledger = ledger_of_runs(transaction, [run_id])
            approve_run(ledger, run_id)
            write(transaction, ledger.changes())
            return views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def rerun(self, run_id: str) -> RunView | None:
        def work(transaction: Transaction) -> RunView | None:
            new = intake.rerun(transaction, run_id, None)
            return None if new is None else views_of_runs.run(transaction.connection, new)

        return await self._write(work)

    async def rerun_failed(self, run_id: str) -> RunView | NotRerun | None:
        return await self._write(lambda transaction: self._rerun_chosen(transaction, run_id, None))

    async def rerun_job(self, job_id: str) -> RunView | NotRerun | None:
        def work(transaction: Transaction) -> RunView | NotRerun | None:
            job = views_of_runs.job(transaction.connection, job_id)
            return None if job is None else self._rerun_chosen(transaction, job.run_id, job_id)

        return await self._write(work)

    @staticmethod
    def _rerun_chosen(transaction: Transaction, run_id: str, job_id: str | None) -> RunView | NotRerun | None:
        ledger = ledger_of_runs(transaction, [run_id])
        if run_id not in ledger.runs:
            return None
        only = steer.chosen_of(ledger, run_id, job_id)
        if isinstance(only, NotRerun):
            return only
        new = intake.rerun(transaction, run_id, only)
        return None if new is None else views_of_runs.run(transaction.connection, new)

    async def register(self, card: WorkerCard) -> WorkerState:
        return await self._write(
            lambda transaction: roster.register(
                transaction.connection, card, transaction.now, self._rules.lease_seconds
            )
        )

    async def leave(self, worker_id: str) -> None:
        await self._write(
            lambda transaction: roster.leave(transaction.connection, worker_id, transaction.now)
        )

    async def report(self, worker_id: str, condition: Condition) -> None:
        await self._write(
            lambda transaction: roster.report(transaction.connection, worker_id, condition, transaction.now)
        )

    async def workers(self) -> Sequence[WorkerView]:
        return await self._database.read(
            lambda connection: roster.workers(connection, self._clock(), self._rules.lease_seconds)
        )

    async def worker(self, worker_id: str) -> WorkerView | None:
        found = await self._database.read(
            lambda connection: roster.workers(
                connection, self._clock(), self._rules.lease_seconds, worker_id=worker_id
            )
        )
        return found[0] if found else None

    async def steer_worker(self, worker_id: str, order: Order) -> WorkerView | NotObeyed | None:
        return await self._write(
            lambda transaction: roster.steer(
                transaction.connection, worker_id, order, transaction.now, self._rules.lease_seconds
            )
        )

    async def outbox(self, limit: int) -> Sequence[Tiding]:
        if not await self._database.read(outbox.anything):
            return ()
        return await self._write(lambda transaction: outbox.take(transaction, limit), quiet=True)

    async def published(self, numbers: Sequence[int]) -> None:
        await self._write(lambda transaction: outbox.published(transaction, numbers), quiet=True)

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
        async with self._bell.listen() as event:
            yield event

    async def _finish(self, group: Sequence[End]) -> Sequence[bool]:
        return await self._write(lambda transaction: lease.finish(transaction, group))

    async def _write(self, work: Callable[[Transaction], T], *, quiet: bool = False) -> T:
        """Carry out `work`, and wake whoever waits for changes if it made any; `quiet` ones interest nobody."""

        def counted(connection: sqlite3.Connection) -> tuple[T, bool]:
            before = connection.total_changes
            transaction = Transaction(connection=connection, moment=Moment(self._clock(), self._rules))
            result = work(transaction)
            settle_groups(transaction)
            return result, connection.total_changes > before

        result, changed = await self._database.write(counted)
        if changed and not quiet:
            self._bell.ring()
        return result
