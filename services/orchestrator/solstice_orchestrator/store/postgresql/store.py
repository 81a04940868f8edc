"""The job store on a PostgreSQL database, shared by any number of orchestrators."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobCancelV1, JobRequestV1, Priority
from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import Database
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
from solstice_orchestrator.store.decisions.transitions import Ledger
from solstice_orchestrator.store.finish_batches import Finishing
from solstice_orchestrator.store.postgresql import admit as intake
from solstice_orchestrator.store.postgresql import cancel, lease, outbox
from solstice_orchestrator.store.postgresql import claim as claiming
from solstice_orchestrator.store.postgresql import purge as purging
from solstice_orchestrator.store.postgresql.finish import Alone, InHand, end_at_once
from solstice_orchestrator.store.postgresql.reading import views_of_runs
from solstice_orchestrator.store.postgresql.reading.queries import Clock, PostgreSQLQueries
from solstice_orchestrator.store.postgresql.schedule import PostgreSQLTimetable
from solstice_orchestrator.store.postgresql.supersede import again, kin_of, settle_group
from solstice_orchestrator.store.postgresql.tables import workers as roster
from solstice_orchestrator.store.postgresql.tables.transaction import (
    Transaction,
    ledger_of_jobs,
    ledger_of_runs,
    write,
)
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
from solstice_orchestrator.store.records.moment import Rules
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.superseding.push_order import Answers, Question

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

T = TypeVar("T")

CHANNEL: Final = "solstice_store"


class PostgreSQLStore(PostgreSQLQueries):
    """Keeps the promises of `JobStore`; opened with `PostgreSQLStore.open`."""

    def __init__(self, database: Database, rules: Rules, clock: Clock | None) -> None:
        super().__init__(database, rules, clock)
        self._in_hand = InHand()
        self._finishing = Finishing(self._finish)
        self.timetable = PostgreSQLTimetable(database, self._write, self._look)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, rules: Rules, clock: Clock | None = None
    ) -> AsyncIterator["PostgreSQLStore"]:
        """The database's own clock decides unless a test has another one.

        Raises StoreUnavailable, SchemaTooNew, ConfigurationError.
        """
        migrations = migrations_of("solstice_orchestrator.store.schema.postgresql")
        async with Database.open(url, migrations) as database:
            yield cls(database, rules, clock)

    async def admit(
        self, requests: Sequence[JobRequestV1], bodies: Sequence[bytes] | None = None
    ) -> Sequence[Admission]:
        if not requests:
            return ()
        known = [request.encode() for request in requests] if bodies is None else bodies
        return await self._write(lambda transaction: intake.admit(transaction, requests, known))

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

        async def work(transaction: Transaction) -> bool | Question:
            known = await kin_of(transaction, task.request)
            kin = rivals(task.request, known.kin, self._rules.supersede, asked=run.supersede)
            asked = await again(transaction, task.run_id)
            ledger = await ledger_of_runs(transaction, [task.run_id, *(each.run_id for each in kin)])
            kept = plan.planned(ledger, task, jobs, run, known, again=asked, answers=answers)
            await write(transaction, ledger.changes())
            return kept

        return await self._write(work)

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        return await self._decide_on_run(
            task.run_id, lambda ledger: plan.not_planned(ledger, task, reason, detail)
        )

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        given = await self._write(lambda transaction: claiming.claim(transaction, worker_id, free, limit))
        self._in_hand.keep(given.alone)
        return given.claims

    async def renew(self, worker_id: str, held: Sequence[AttemptKey]) -> Renewal:
        async def at_once(connection: "Connection") -> Renewal:
            return await lease.renew(self._transaction(connection), worker_id, held)

        # A lease must not run out while its renewal stands in line.
        renewal = await self._database.transaction(at_once, urgent=True)
        self._in_hand.forget(renewal.lost | renewal.cancelled)
        return renewal

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
        return await self._write(lambda transaction: lease.append_log(transaction, key, chunks))

    def finish(self, key: AttemptKey, outcome: Outcome) -> Awaitable[bool]:
        return self._finishing((key, outcome))

    async def rescue(self) -> Sequence[AttemptKey]:
        rescued: list[AttemptKey] = []
        more = True
        while more:
            some, more = await self._write(lease.rescue)
            rescued += some
        return rescued

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        async def work(transaction: Transaction) -> JobView | None:
            ledger = await ledger_of_jobs(transaction, [job_id])
            steer.cancel_job(ledger, job_id, detail)
            await write(transaction, ledger.changes())
            return await views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        async def work(transaction: Transaction) -> RunView | None:
            ledger = await ledger_of_runs(transaction, [run_id])
            steer.cancel_run(ledger, run_id, detail)
            await write(transaction, ledger.changes())
            return await views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        # One by one: each takes the lock of its change request first, and then those of runs.
        return [await self._write(functools.partial(cancel.cancel, message=message)) for message in cancels]

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        async def work(transaction: Transaction) -> JobView | None:
            ledger = await ledger_of_jobs(transaction, [job_id])
            steer.prioritise(ledger, job_id, priority)
            await write(transaction, ledger.changes())
            return await views_of_runs.job(transaction.connection, job_id)

        return await self._write(work)

    async def approve_run(self, run_id: str) -> RunView | None:
        async def work(transaction: Transaction) -> RunView | None:
            ledger = await ledger_of_runs(transaction, [run_id])
            approve_run(ledger, run_id)
            await write(transaction, ledger.changes())
            return await views_of_runs.run(transaction.connection, run_id)

        return await self._write(work)

    async def rerun(self, run_id: str) -> RunView | None:
        async def work(transaction: Transaction) -> RunView | None:
            new = await intake.rerun(transaction, run_id, None)
            return None if new is None else await views_of_runs.run(transaction.connection, new)

        return await self._write(work)

    async def rerun_failed(self, run_id: str) -> RunView | NotRerun | None:
        return await self._write(lambda transaction: self._rerun_chosen(transaction, run_id, None))

    async def rerun_job(self, job_id: str) -> RunView | NotRerun | None:
        async def work(transaction: Transaction) -> RunView | NotRerun | None:
            job = await views_of_runs.job(transaction.connection, job_id)
            return None if job is None else await self._rerun_chosen(transaction, job.run_id, job_id)

        return await self._write(work)

    @staticmethod
    async def _rerun_chosen(
        transaction: Transaction, run_id: str, job_id: str | None
    ) -> RunView | NotRerun | None:
        ledger = await ledger_of_runs(transaction, [run_id])
        if run_id not in ledger.runs:
            return None
        only = steer.chosen_of(ledger, run_id, job_id)
        if isinstance(only, NotRerun):
            return only
        new = await intake.rerun(transaction, run_id, only)
        return None if new is None else await views_of_runs.run(transaction.connection, new)

    async def register(self, card: WorkerCard) -> WorkerState:
        return await self._on_roster(
            lambda connection, now: roster.register(connection, card, now, self._rules.lease_seconds)
        )

    async def leave(self, worker_id: str) -> None:
        await self._on_roster(lambda connection, now: roster.leave(connection, worker_id, now))

    async def report(self, worker_id: str, condition: Condition) -> None:
        await self._on_roster(lambda connection, now: roster.report(connection, worker_id, condition, now))

    async def workers(self) -> Sequence[WorkerView]:
        return await self._on_roster(
            lambda connection, now: roster.workers(connection, now, self._rules.lease_seconds), reads=True
        )

    async def worker(self, worker_id: str) -> WorkerView | None:
        found = await self._on_roster(
            lambda connection, now: roster.workers(
                connection, now, self._rules.lease_seconds, worker_id=worker_id
            ),
            reads=True,
        )
        return found[0] if found else None

    async def steer_worker(self, worker_id: str, order: Order) -> WorkerView | NotObeyed | None:
        return await self._on_roster(
            lambda connection, now: roster.steer(connection, worker_id, order, now, self._rules.lease_seconds)
        )

    async def outbox(self, limit: int) -> Sequence[Tiding]:
        if not await self._database.fetch(outbox.ANYTHING):
            return ()
        return await self._write(lambda transaction: outbox.take(transaction, limit), quiet=True)

    async def published(self, numbers: Sequence[int]) -> None:
        await self._write(lambda transaction: outbox.published(transaction, numbers), quiet=True)

    async def purgeable(self, older_than_seconds: float) -> int:
        async def work(transaction: Transaction) -> int:
            return await purging.purgeable(
                transaction.connection, await transaction.now() - older_than_seconds
            )

        return await self._write(work)

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        return await self._write(
            lambda transaction: purging.purge(transaction, older_than_seconds, limit), quiet=True
        )

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        async with self._database.listen(CHANNEL) as event:
            yield event

    async def _decide_on_run(self, run_id: str, decide: Callable[[Ledger], T]) -> T:
        async def work(transaction: Transaction) -> T:
            ledger = await ledger_of_runs(transaction, [run_id])
            answer = decide(ledger)
            await write(transaction, ledger.changes())
            return answer

        return await self._write(work)

    async def _on_roster(
        self, work: "Callable[[Connection, float], Awaitable[T]]", *, reads: bool = False
    ) -> T:
        async def at_once(transaction: Transaction) -> T:
            answer = await work(transaction.connection, await transaction.now())
            transaction.changed = not reads
            return answer

        return await self._write(at_once)

    async def _write(self, work: Callable[[Transaction], Awaitable[T]], *, quiet: bool = False) -> T:
        """Carry out `work`, and wake whoever waits for changes if it made any; `quiet` ones interest nobody."""
        result, done = await self._carry_out(work)
        groups = done.groups
        with contextlib.suppress(StoreUnavailable):
            # What was asked for is done, whatever becomes of this: a later rescue makes up for it.
            while groups:
                group = groups.pop()
                _, followed = await self._carry_out(functools.partial(settle_group, group=group))
                done.changed |= followed.changed
                groups |= followed.groups
        if done.changed and not quiet:
            self._database.ring(CHANNEL)
        return result

    async def _carry_out(self, work: Callable[[Transaction], Awaitable[T]]) -> tuple[T, Transaction]:
        async def once(connection: "Connection") -> tuple[T, Transaction]:
            transaction = self._transaction(connection)
            return await work(transaction), transaction

        return await self._database.transaction(once)

    async def _finish(self, group: Sequence[End]) -> Sequence[bool]:
        found = [(end, self._in_hand.take(*end)) for end in group]
        known = [(end, alone) for end, alone in found if alone is not None]
        if not known or not await self._end_at_once(known):
            return await self._write(lambda transaction: lease.finish(transaction, group))
        others = [end for end, alone in found if alone is None]
        answers = iter(
            await self._write(lambda transaction: lease.finish(transaction, others)) if others else ()
        )
        return [True if alone is not None else next(answers) for _, alone in found]

    async def _end_at_once(self, known: Sequence[tuple[End, Alone]]) -> bool:
        now = self._heard.now() if self._clock is None else self._clock()
        if now is None:
            return False
        done = await end_at_once(self._database, self._rules, now, known, look=self._clock is None)
        if done is None:
            return False
        self._heard.hear(done)
        self._database.ring(CHANNEL)
        return True
