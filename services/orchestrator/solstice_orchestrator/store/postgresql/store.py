"""The job store on a PostgreSQL database, shared by any number of orchestrators."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.runtime.batcher import Batcher
from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import PostgreSQLDatabase
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
from solstice_orchestrator.store.decisions.supersede import ref_digest
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.postgresql import (
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
from solstice_orchestrator.store.postgresql.finish import ClaimCache, SingleJobRun, end_at_once
from solstice_orchestrator.store.postgresql.reading.queries import Clock, PostgreSQLQueries
from solstice_orchestrator.store.postgresql.schedule import PostgreSQLScheduleStore
from solstice_orchestrator.store.postgresql.supersede import settle_group
from solstice_orchestrator.store.postgresql.tables import (
    artifact_table,
    report_table,
    run_traces,
    worker_table,
)
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, change_runs
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
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.records.report_records import ReportRecord
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.store.run_operations import RunOperations
from solstice_orchestrator.store.traced_runs import TracedRun
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.superseding.push_order import OrderQuestion

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

T = TypeVar("T")

CHANNEL: Final = "solstice_store"
PLANS_AT_ONCE: Final = 2
"""How many batches of planned runs are stored at once: while one is written, the next one's runs are read."""


class PostgreSQLStore(PostgreSQLQueries, RunOperations):
    """Keeps the promises of `JobStore`; opened with `PostgreSQLStore.open`."""

    def __init__(self, database: PostgreSQLDatabase, rules: StoreRules, clock: Clock | None) -> None:
        super().__init__(database, rules, clock)
        self._claim_cache = ClaimCache()
        self._finishing = Batcher(self._finish, name="ends of attempts", at_once=BATCHES_AT_ONCE)
        self._planning = Batcher(self._plan_all, name="planned runs", at_once=PLANS_AT_ONCE)
        self._ref_locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """The refs of which a planned run is being stored: a batch must not have two of one."""
        self.schedule_store = PostgreSQLScheduleStore(database, self._write, self._read_transaction)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, rules: StoreRules, clock: Clock | None = None
    ) -> AsyncIterator["PostgreSQLStore"]:
        """Open the store; the database's clock decides unless a test gives another.

        Raises StoreUnavailable, SchemaTooNew, ConfigurationError.
        """
        migrations = migrations_of("solstice_orchestrator.store.schema.postgresql")
        async with PostgreSQLDatabase.open(url, migrations) as database:
            yield cls(database, rules, clock)

    async def admit(
        self,
        requests: Sequence[JobRequestV1],
        bodies: Sequence[bytes] | None = None,
        signatures: Sequence[str] | None = None,
    ) -> Sequence[Admission]:
        if not requests:
            return ()
        known = [request.encode() for request in requests] if bodies is None else bodies
        return await self._write(
            lambda transaction: admit.admit(transaction, requests, known, signatures=signatures)
        )

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        return await self._write(lambda transaction: plan.claim_planning(transaction, worker_id, limit))

    async def take_back_planning(self, worker_id: str, claimed: Collection[str]) -> None:
        await self._write(lambda transaction: plan.take_back_planning(transaction, worker_id, claimed))

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        claimed_jobs = await self._write(lambda transaction: claim.claim(transaction, worker_id, free, limit))
        self._claim_cache.keep(claimed_jobs.single_job_runs)
        return claimed_jobs.claims

    async def renew(self, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
        async def at_once(connection: "Connection") -> Renewal:
            return await lease.renew(self._transaction(connection), worker_id, claimed)

        # A lease must not run out while its renewal waits in a queue.
        renewal = await self._database.transaction(at_once, urgent=True)
        self._claim_cache.forget(renewal.lost | renewal.cancelled)
        return renewal

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk], service: str = "") -> bool:
        return await self._write(lambda transaction: lease.append_log(transaction, key, chunks, service))

    async def record_image(self, key: AttemptKey, image: str) -> bool:
        return await self._write(lambda transaction: lease.record_image(transaction, key, image))

    async def provisioning(self, key: AttemptKey, seconds: float, *, done: bool) -> bool:
        return await self._write(lambda transaction: lease.provisioning(transaction, key, seconds, done=done))

    async def record_artifact(
        self, key: AttemptKey, artifact: ArtifactRecord, most_bytes: int
    ) -> ArtifactAnswer:
        return await self._write(
            lambda transaction: artifact_table.record(transaction, key, artifact, most_bytes)
        )

    async def record_report(self, job_id: str, attempt: int, record: ReportRecord) -> bool:
        return await self._write(
            lambda transaction: report_table.record(transaction, job_id, attempt, record)
        )

    async def expire_artifacts(self, limit: int) -> int:
        return await self._write(lambda transaction: artifact_table.expire(transaction, limit), quiet=True)

    def finish(self, key: AttemptKey, outcome: Outcome, logs: Sequence[LastChunks] = ()) -> Awaitable[bool]:
        return self._finishing(AttemptEnd(key, outcome, logs))

    async def rescue(self) -> Sequence[AttemptKey]:
        rescued: list[AttemptKey] = []
        more = True
        while more:
            some, more = await self._write(rescue.rescue)
            rescued += some
        return rescued

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        # One by one: each takes the lock of its change request first, and then those of runs.
        return [await self._write(functools.partial(cancel.cancel, message=message)) for message in cancels]

    async def register(self, registration: WorkerRegistration) -> WorkerState:
        return await self._on_workers_table(
            lambda connection, now: worker_table.register(
                connection, registration, now, self._rules.lease_seconds
            )
        )

    async def leave(self, worker_id: str) -> None:
        await self._on_workers_table(
            lambda connection, now: worker_table.record_leave(connection, worker_id, now)
        )

    async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
        await self._on_workers_table(
            lambda connection, now: worker_table.report(connection, worker_id, pressure, now)
        )

    async def steer_worker(self, worker_id: str, order: WorkerOrder) -> WorkerView | OrderRefusal | None:
        return await self._on_workers_table(
            lambda connection, now: worker_table.steer(
                connection, worker_id, order, now, self._rules.lease_seconds
            )
        )

    async def outbox(self, limit: int) -> Sequence[OutboxMessage]:
        if not await self._database.fetch(outbox.HAS_MESSAGES):
            return ()
        return await self._write(lambda transaction: outbox.oldest_messages(transaction, limit), quiet=True)

    async def published(self, numbers: Sequence[int]) -> None:
        await self._write(lambda transaction: outbox.forget_published(transaction, numbers), quiet=True)

    async def take_traces(self, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
        if not await self._database.fetch(run_traces.WAITING):
            return ()
        return await self._write(
            lambda transaction: run_traces.take(transaction, limit, leased_seconds), quiet=True
        )

    async def traced(self, run_ids: Sequence[str]) -> None:
        await self._write(lambda transaction: run_traces.remove(transaction, run_ids), quiet=True)

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        return await self._write(
            lambda transaction: purge.purge(transaction, older_than_seconds, limit), quiet=True
        )

    @asynccontextmanager
    async def changes(self, topics: StoreTopic = StoreTopic.ALL) -> AsyncIterator[asyncio.Event]:  # noqa: ARG002  all are notified of all
        async with self._database.listen(CHANNEL) as event:
            yield event

    async def _on_workers_table(self, work: "Callable[[Connection, float], Awaitable[T]]") -> T:
        async def at_once(transaction: PostgreSQLTransaction) -> T:
            answer = await work(transaction.connection, await transaction.now())
            transaction.changed = True
            return answer

        return await self._write(at_once)

    async def _write(
        self, work: Callable[[PostgreSQLTransaction], Awaitable[T]], *, quiet: bool = False
    ) -> T:
        """Carry out `work`, and notify listeners if it changed anything.

        `quiet` work does not notify.
        """
        result, done = await self._carry_out(work)
        groups = done.groups
        with contextlib.suppress(StoreUnavailable):
            # The work is committed even if this fails: a later rescue makes up for it.
            while groups:
                group = groups.pop()
                _, followed = await self._carry_out(functools.partial(settle_group, group=group))
                done.changed |= followed.changed
                groups |= followed.groups
        if done.changed and not quiet:
            self._database.notify(CHANNEL)
        return result

    async def _carry_out(
        self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]
    ) -> tuple[T, PostgreSQLTransaction]:
        async def once(connection: "Connection") -> tuple[T, PostgreSQLTransaction]:
            transaction = self._transaction(connection)
            return await work(transaction), transaction

        return await self._database.transaction(once)

    async def _steer_job(self, job_id: str, decide: Callable[[UnitOfWork], None]) -> JobView | None:
        return await self._write(lambda transaction: steer.steer_job(transaction, job_id, decide))

    async def _steer_run(self, run_id: str, decide: Callable[[UnitOfWork], None]) -> RunView | None:
        return await self._write(lambda transaction: steer.steer_run(transaction, run_id, decide))

    async def _rerun(self, run_id: str, decide: Callable[[UnitOfWork], Rerun | T]) -> RunView | T | None:
        return await self._write(lambda transaction: steer.rerun(transaction, run_id, decide))

    async def _plan(self, task: PlanningTask, run: RunSpec, decide: DecidePlan) -> bool | OrderQuestion:
        digest = ref_digest(task.request)
        ref_lock = (
            contextlib.nullcontext() if digest is None else self._ref_locks.setdefault(digest, asyncio.Lock())
        )
        async with ref_lock:
            return await self._planning(plan.PlannedRun(task, run, decide))

    async def _plan_all(self, group: Sequence[plan.PlannedRun]) -> Sequence[bool | OrderQuestion]:
        return await self._write(lambda transaction: plan.plan_runs(transaction, group))

    async def _change_run(self, run_id: str, decide: Callable[[UnitOfWork], T]) -> T:
        return await self._write(lambda transaction: change_runs(transaction, [run_id], decide))

    async def _finish(self, group: Sequence[AttemptEnd]) -> Sequence[bool]:
        ends = [(end, self._claim_cache.take(end.key, end.outcome)) for end in group]
        known = [(end, single_job_runs) for end, single_job_runs in ends if single_job_runs is not None]
        if not known or not await self._end_at_once(known):
            return await self._write(lambda transaction: finish.finish(transaction, group))
        others = [end for end, single_job_runs in ends if single_job_runs is None]
        answers = iter(
            await self._write(lambda transaction: finish.finish(transaction, others)) if others else ()
        )
        return [True if single_job_runs is not None else next(answers) for _, single_job_runs in ends]

    async def _end_at_once(self, known: Sequence[tuple[AttemptEnd, SingleJobRun]]) -> bool:
        now = self._estimated_clock.now() if self._clock is None else self._clock()
        if now is None:
            return False
        done = await end_at_once(self._database, self._rules, now, known, needs_now=self._clock is None)
        if done is None:
            return False
        self._estimated_clock.hear(done)
        self._database.notify(CHANNEL)
        return True
