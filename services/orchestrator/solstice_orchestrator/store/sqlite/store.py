"""The job store on one SQLite database: a file that processes share, or memory."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.runtime.batcher import Batcher
from solstice_common.runtime.memory_notifier import Notifier
from solstice_common.storage.sqlite import SqliteDatabase, migrations_of
from solstice_common.storage.sqlite_place import SqlitePlace, notifier_beside
from solstice_orchestrator.domain.jobs import Outcome, RunSpec
from solstice_orchestrator.scheduling.workers import (
    OrderRefusal,
    WorkerOrder,
    WorkerPressure,
    WorkerRegistration,
    WorkerState,
    WorkerView,
)
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.store.decisions.finish import BATCHES_AT_ONCE, AttemptEnd
from solstice_orchestrator.store.decisions.plan import DecidePlan
from solstice_orchestrator.store.decisions.steer import Rerun
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import (
    Admission,
    AttemptKey,
    Cancelled,
    Claim,
    LastChunks,
    OutboxMessage,
    PlanningTask,
    Purged,
    Renewal,
)
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.records.report_records import ReportRecord
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.store.run_operations import RunOperations
from solstice_orchestrator.store.sqlite import (
    admit,
    cancel,
    claim,
    finish,
    lease,
    outbox,
    plan,
    purge,
    rescue,
    steer,
)
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from solstice_orchestrator.store.sqlite.reading.queries import Clock, SqliteQueries
from solstice_orchestrator.store.sqlite.schedule import SqliteScheduleStore
from solstice_orchestrator.store.sqlite.supersede import settle_groups
from solstice_orchestrator.store.sqlite.tables import artifact_table, report_table, run_traces, worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction, change_runs
from solstice_orchestrator.store.traced_runs import TracedRun
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.superseding.push_order import OrderQuestion

SCHEDULE_CHANGES: Final = ".schedule-changes"
"""Ends the name of the directory by which processes notify each other of changed schedules.

Older versions notify each other in `.schedule-bells`: their processes see a change at their next poll.
"""

_SHOWN: Final = StoreTopic.OUTBOX | StoreTopic.VIEWS
"""The topics of a change of state."""

T = TypeVar("T")


class SqliteStore(SqliteQueries, RunOperations):
    """Keeps the promises of `JobStore`; opened with `SqliteStore.open`."""

    def __init__(self, database: SqliteDatabase, notifier: Notifier, rules: StoreRules, clock: Clock) -> None:
        super().__init__(database, rules, clock)
        self._notifier = StoreNotifier(notifier)
        self._finishing = Batcher(self._finish, name="ends of attempts", at_once=BATCHES_AT_ONCE)
        self.schedule_store = SqliteScheduleStore(
            self._write,
            database.read,
            lambda: Moment(clock(), rules),
            StoreNotifier(notifier_beside(database.place, SCHEDULE_CHANGES)),
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, place: SqlitePlace, *, rules: StoreRules, clock: Clock = time.time
    ) -> AsyncIterator["SqliteStore"]:
        """Open the store. Raises StoreUnavailable, SchemaTooNew."""
        migrations = migrations_of("solstice_orchestrator.store.schema.sqlite")
        async with SqliteDatabase.open(place, migrations) as database:
            store = cls(database, notifier_beside(place, ".changes"), rules, clock)
            try:
                yield store
            finally:
                store._notifier.close()
                store.schedule_store.close()

    async def admit(
        self,
        requests: Sequence[JobRequestV1],
        bodies: Sequence[bytes] | None = None,
        signatures: Sequence[str] | None = None,
    ) -> Sequence[Admission]:
        if not requests:
            return ()
        if bodies is None:
            bodies = [request.encode() for request in requests]
        return await self._write(
            lambda transaction: admit.admit(transaction, requests, bodies, signatures),
            topics=StoreTopic.PLANNING | _SHOWN,
            new_work=True,
        )

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        claimed = await self._write(
            lambda transaction: plan.claim_planning(transaction, worker_id, limit),
            topics=StoreTopic.VIEWS,
            synchronous=False,
        )
        if claimed is not None:
            return claimed
        return await self._write(lambda transaction: plan.begin_and_claim(transaction, worker_id, limit))

    async def take_back_planning(self, worker_id: str, claimed: Collection[str]) -> None:
        await self._write(lambda transaction: plan.take_back_planning(transaction, worker_id, claimed))

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        return await self._write(
            lambda transaction: claim.claim(transaction, worker_id, free, limit), topics=_SHOWN
        )

    async def renew(self, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
        return await self._write(lambda transaction: lease.renew(transaction, worker_id, claimed), quiet=True)

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk], service: str = "") -> bool:
        return await self._write(
            lambda transaction: lease.append_log(transaction, key, chunks, service), topics=StoreTopic.VIEWS
        )

    async def record_image(self, key: AttemptKey, image: str) -> bool:
        return await self._write(
            lambda transaction: lease.record_image(transaction, key, image), topics=StoreTopic.VIEWS
        )

    async def provisioning(self, key: AttemptKey, seconds: float, *, done: bool) -> bool:
        return await self._write(
            lambda transaction: lease.provisioning(transaction, key, seconds, done=done),
            topics=StoreTopic.VIEWS,
        )

    async def record_artifact(
        self, key: AttemptKey, artifact: ArtifactRecord, most_bytes: int
    ) -> ArtifactAnswer:
        return await self._write(
            lambda transaction: artifact_table.record(transaction, key, artifact, most_bytes),
            topics=StoreTopic.VIEWS,
        )

    async def record_report(self, job_id: str, attempt: int, record: ReportRecord) -> bool:
        return await self._write(
            lambda transaction: report_table.record(transaction, job_id, attempt, record),
            topics=StoreTopic.VIEWS,
        )

    async def expire_artifacts(self, limit: int) -> int:
        return await self._write(lambda transaction: artifact_table.expire(transaction, limit), quiet=True)

    def finish(self, key: AttemptKey, outcome: Outcome, logs: Sequence[LastChunks] = ()) -> Awaitable[bool]:
        return self._finishing(AttemptEnd(key, outcome, logs))

    async def rescue(self) -> Sequence[AttemptKey]:
        return await self._write(rescue.rescue)

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        return await self._write(lambda transaction: cancel.cancel(transaction, cancels))

    async def register(self, registration: WorkerRegistration) -> WorkerState:
        return await self._write(
            lambda transaction: worker_table.register(
                transaction.connection, registration, transaction.now, self._rules.lease_seconds
            )
        )

    async def leave(self, worker_id: str) -> None:
        await self._write(
            lambda transaction: worker_table.record_leave(transaction.connection, worker_id, transaction.now)
        )

    async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
        await self._write(
            lambda transaction: worker_table.report(
                transaction.connection, worker_id, pressure, transaction.now
            )
        )

    async def steer_worker(self, worker_id: str, order: WorkerOrder) -> WorkerView | OrderRefusal | None:
        return await self._write(
            lambda transaction: worker_table.steer(
                transaction.connection, worker_id, order, transaction.now, self._rules.lease_seconds
            )
        )

    async def outbox(self, limit: int) -> Sequence[OutboxMessage]:
        if not await self._database.read(outbox.has_messages):
            return ()
        return await self._write(
            lambda transaction: outbox.oldest_messages(transaction, limit), quiet=True, synchronous=False
        )

    async def published(self, numbers: Sequence[int]) -> None:
        await self._write(
            lambda transaction: outbox.forget_published(transaction, numbers), quiet=True, synchronous=False
        )

    async def take_traces(self, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
        if not await self._database.read(lambda connection: run_traces.wait(connection, self._clock())):
            return ()
        return await self._write(
            lambda transaction: run_traces.take(transaction, limit, leased_seconds),
            quiet=True,
            synchronous=False,
        )

    async def traced(self, run_ids: Sequence[str]) -> None:
        await self._write(
            lambda transaction: run_traces.remove(transaction, run_ids), quiet=True, synchronous=False
        )

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        return await self._write(
            lambda transaction: purge.purge(transaction, older_than_seconds, limit), quiet=True
        )

    @asynccontextmanager
    async def changes(self, topics: StoreTopic = StoreTopic.ALL) -> AsyncIterator[asyncio.Event]:
        async with self._notifier.listen(topics) as event:
            yield event

    async def _steer_job(self, job_id: str, decide: Callable[[UnitOfWork], None]) -> JobView | None:
        return await self._write(lambda transaction: steer.steer_job(transaction, job_id, decide))

    async def _steer_run(self, run_id: str, decide: Callable[[UnitOfWork], None]) -> RunView | None:
        return await self._write(lambda transaction: steer.steer_run(transaction, run_id, decide))

    async def _rerun(self, run_id: str, decide: Callable[[UnitOfWork], Rerun | T]) -> RunView | T | None:
        return await self._write(lambda transaction: steer.rerun(transaction, run_id, decide))

    async def _plan(self, task: PlanningTask, run: RunSpec, decide: DecidePlan) -> bool | OrderQuestion:
        return await self._write(
            lambda transaction: plan.plan_run(transaction, task, run, decide),
            topics=StoreTopic.CLAIMS | _SHOWN,
            new_work=True,
        )

    async def _change_run(self, run_id: str, decide: Callable[[UnitOfWork], T]) -> T:
        return await self._write(lambda transaction: change_runs(transaction, [run_id], decide))

    async def _finish(self, group: Sequence[AttemptEnd]) -> Sequence[bool]:
        return await self._write(
            lambda transaction: finish.finish(transaction, group), topics=StoreTopic.CLAIMS | _SHOWN
        )

    async def _write(
        self,
        work: Callable[[SqliteTransaction], T],
        *,
        quiet: bool = False,
        topics: StoreTopic = StoreTopic.ALL,
        new_work: bool = False,
        synchronous: bool = True,
    ) -> T:
        """Carry out `work`, and notify listeners of these topics if it changed anything.

        `quiet` work does not notify. For `new_work`, listeners of this process wait for no pause. Work that is not
        `synchronous` may be undone by a power cut: a run is planned again, and a message published again. It adds no
        message, so what is published is durable; and it is none that a worker on another machine, which outlives the
        power cut, relies on.
        """

        def counted(connection: sqlite3.Connection) -> tuple[T, bool]:
            before = connection.total_changes
            transaction = SqliteTransaction(connection=connection, moment=Moment(self._clock(), self._rules))
            result = work(transaction)
            settle_groups(transaction)
            return result, connection.total_changes > before

        result, changed = await self._database.write(counted, synchronous=synchronous)
        if changed and not quiet:
            self._notifier.notify(topics, new_work=new_work)
        return result
