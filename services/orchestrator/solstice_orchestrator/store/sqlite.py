"""The job store on one SQLite file, shared by the processes of one machine."""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from solstice_common.doorbell import Doorbell
from solstice_common.messages import JobRequestV1
from solstice_common.sqlite import Database, migrations_of
from solstice_orchestrator.jobs import JobSpec, JobState, Outcome, Reason, RunState
from solstice_orchestrator.store import admit, claims, finish, leases, outbox, plans, reading, steer
from solstice_orchestrator.store.protocol import (
    Admission,
    AttemptKey,
    AttemptView,
    Claim,
    JobView,
    LogChunk,
    LogPage,
    OutboxRow,
    Page,
    PlanningTask,
    Renewal,
    RunView,
)
from solstice_orchestrator.store.transaction import Rules, Transaction

T = TypeVar("T")
Clock = Callable[[], float]

RING_PAUSE_SECONDS: Final = 0.01
"""Other processes are woken at most this often; what happens in between rings once, afterwards."""


class SqliteStore:
    """Keeps the promises of `JobStore`; opened with `SqliteStore.open`."""

    def __init__(self, database: Database, doorbell: Doorbell, rules: Rules, clock: Clock) -> None:
        self._database = database
        self._rules = rules
        self._clock = clock
        self._bell = _Bell(doorbell)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, *, rules: Rules, clock: Clock = time.time
    ) -> AsyncIterator["SqliteStore"]:
        """Raises StoreUnavailable, SchemaTooNew."""
        migrations = migrations_of("solstice_orchestrator.store.schema")
        async with Database.open(path, migrations) as database:
            store = cls(database, Doorbell(path.with_name(f"{path.name}.bells")), rules, clock)
            try:
                yield store
            finally:
                store._bell.close()

    async def admit(
        self, requests: Sequence[JobRequestV1], bodies: Sequence[bytes] | None = None
    ) -> Sequence[Admission]:
        if not requests:
            return ()
        if bodies is None:
            bodies = [request.encode() for request in requests]
        return await self._write(lambda transaction: admit.admit(transaction, requests, bodies))

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        return await self._write(lambda transaction: plans.claim_planning(transaction, worker_id, limit))

    async def planned(self, task: PlanningTask, jobs: Sequence[JobSpec]) -> bool:
        return await self._write(lambda transaction: plans.planned(transaction, task, jobs))

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        return await self._write(lambda transaction: plans.not_planned(transaction, task, reason, detail))

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        return await self._write(lambda transaction: claims.claim(transaction, worker_id, free, limit))

    async def renew(self, worker_id: str, held: Sequence[AttemptKey]) -> Renewal:
        return await self._write(lambda transaction: leases.renew(transaction, worker_id, held), quiet=True)

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
        return await self._write(lambda transaction: finish.append_log(transaction, key, chunks))

    async def finish(self, key: AttemptKey, outcome: Outcome) -> bool:
        return await self._write(lambda transaction: finish.finish(transaction, key, outcome))

    async def rescue(self) -> Sequence[AttemptKey]:
        return await self._write(finish.rescue)

    async def cancel_job(self, job_id: str) -> JobView | None:
        return await self._write(lambda transaction: steer.cancel_job(transaction, job_id))

    async def cancel_run(self, run_id: str) -> RunView | None:
        return await self._write(lambda transaction: steer.cancel_run(transaction, run_id))

    async def rerun(self, run_id: str) -> RunView | None:
        return await self._write(lambda transaction: steer.rerun(transaction, run_id))

    async def outbox(self, limit: int) -> Sequence[OutboxRow]:
        if not await self._database.read(outbox.anything):
            return ()
        return await self._write(lambda transaction: outbox.take(transaction, limit), quiet=True)

    async def published(self, row_ids: Sequence[int]) -> None:
        await self._write(lambda transaction: outbox.published(transaction, row_ids), quiet=True)

    async def runs(
        self,
        *,
        limit: int,
        after: str | None = None,
        repository: str | None = None,
        state: RunState | None = None,
    ) -> Page:
        return await self._database.read(
            lambda connection: reading.runs(
                connection, limit=limit, after=after, repository=repository, state=state
            )
        )

    async def run(self, run_id: str) -> RunView | None:
        return await self._database.read(lambda connection: reading.run(connection, run_id))

    async def run_of_request(self, request_id: str) -> RunView | None:
        return await self._database.read(lambda connection: reading.run_of_request(connection, request_id))

    async def jobs(
        self, *, run_id: str | None = None, state: JobState | None = None, limit: int
    ) -> Sequence[JobView]:
        return await self._database.read(
            lambda connection: reading.jobs(connection, run_id=run_id, state=state, limit=limit)
        )

    async def job(self, job_id: str) -> JobView | None:
        return await self._database.read(lambda connection: reading.job(connection, job_id))

    async def attempts(self, job_id: str) -> Sequence[AttemptView]:
        return await self._database.read(lambda connection: reading.attempts(connection, job_id))

    async def log(
        self, job_id: str, *, attempt: int | None = None, after: int = 0, limit: int = 1000
    ) -> LogPage | None:
        return await self._database.read(
            lambda connection: reading.log(connection, job_id, attempt=attempt, after=after, limit=limit)
        )

    async def counts(self) -> Mapping[tuple[JobState, str], int]:
        return await self._database.read(reading.counts)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        async with self._bell.listen() as event:
            yield event

    async def _write(self, work: Callable[[Transaction], T], *, quiet: bool = False) -> T:
        """Carry out `work`, and wake whoever waits for changes if it made any; `quiet` ones interest nobody."""

        def counted(connection: sqlite3.Connection) -> tuple[T, bool]:
            before = connection.total_changes
            result = work(Transaction(connection=connection, now=self._clock(), rules=self._rules))
            return result, connection.total_changes > before

        result, changed = await self._database.write(counted)
        if changed and not quiet:
            self._bell.ring()
        return result


class _Bell:
    """Wakes the listeners of this process at once, and those of others through the doorbell, not too often."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    def ring(self) -> None:
        if self._pause is not None:
            self._again = True
            return
        self._doorbell.ring()
        self._pause = asyncio.get_running_loop().call_later(RING_PAUSE_SECONDS, self._paused)

    def _paused(self) -> None:
        self._pause = None
        if self._again:
            self._again = False
            self.ring()

    def listen(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._doorbell.listen()

    def close(self) -> None:
        """Ring what was still to be rung."""
        if self._pause is not None:
            self._pause.cancel()
            if self._again:
                self._doorbell.ring()


def default_rng() -> random.Random:
    """Jitter and ids need no secrecy, only not to be the same in two processes."""
    return random.Random(random.SystemRandom().getrandbits(128))  # noqa: S311
