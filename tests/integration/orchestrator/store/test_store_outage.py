"""Database outages shorter and longer than a lease, with production's leases.

The store and its workers go by one clock, which the test moves: a minute of outage is over as soon as all have seen it.
That intake is paused and messages stay in RabbitMQ meanwhile is shown with processes, in `tests/chaos/test_database_outage.py`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.stages import dispatch
from solstice_orchestrator.stages.dispatch import Dispatch
from solstice_orchestrator.stages.rescue_sweep import run_rescue
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.worker import execution
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.executors.protocol import Execution, LogWriter
from solstice_orchestrator.worker.log_buffer import StoreRetryLimit
from tests.builders import job
from tests.polling import wait_until, wait_until_true
from tests.servers.postgresql import ScratchDatabase
from tests.stores import (
    SUCCEEDED,
    ManualClock,
    outbox_statuses,
    planned,
    retries_after,
    state_of,
    worker_record,
)

LEASE: Final[float] = OrchestratorSettings.model_fields["lease_seconds"].default
RENEW: Final[float] = OrchestratorSettings.model_fields["renew_seconds"].default
GIVEN_UP: Final = (LogEvent.LEASE_LOST, LogEvent.ATTEMPT_LOST, LogEvent.ATTEMPT_UNRECORDED)
"""The first task that notices an expired lease, its keeper or one with output or an end to store, logs one of
these.
"""

Events = Sequence[MutableMapping[str, Any]]

pytestmark = pytest.mark.timeout(300)  # it may have to start a PostgreSQL first, and stops and starts it


@pytest.fixture(autouse=True)
def fresh_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers without cached settings of earlier tests, so that logs can be captured."""
    monkeypatch.setattr(dispatch, "log", structlog.get_logger())
    monkeypatch.setattr(execution, "LOG", structlog.get_logger())


@dataclass
class GatedExecutor:
    """An executor whose jobs wait for the gate, and the outcomes of their attempts."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[int] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    isolates: bool = True

    async def run(self, execution: Execution, log: LogWriter, _stop: asyncio.Event) -> Outcome:
        self.begun.append(execution.attempt)
        try:
            await log(b"waits\n")
            await self.open.wait()
            await log(b"done\n")
        except asyncio.CancelledError:
            self.ended.append((execution.attempt, "killed"))
            raise
        self.ended.append((execution.attempt, "done"))
        return SUCCEEDED


@asynccontextmanager
async def worker(
    name: str, store: JobStore, gate: GatedExecutor, clock: ManualClock
) -> AsyncIterator[Dispatch]:
    """A worker with one slot that renews and rescues leases until left."""
    rng = random.Random(name)
    async with asyncio.TaskGroup() as jobs, asyncio.TaskGroup() as loops:
        dispatch = Dispatch(
            store=store,
            execute=partial(
                execute,
                store=store,
                executor=gate,
                retry_limit=StoreRetryLimit(seconds=LEASE, monotonic=clock),
            ),
            registration=worker_record(name),
            jobs=jobs,
            metrics=Metrics(),
            rng=rng,
            lease_seconds=LEASE,
            renew_seconds=RENEW,
            monotonic=clock,
        )
        await store.register(worker_record(name))
        claiming = loops.create_task(dispatch.claim_jobs())
        others = [
            loops.create_task(dispatch.keep_leases()),
            loops.create_task(run_rescue(store, every_seconds=0.2, lease_seconds=LEASE, rng=rng)),
        ]
        try:
            yield dispatch
        finally:
            dispatch.stop_claiming()
            await claiming
            await dispatch.drain(0, asyncio.Event())
            for task in others:
                task.cancel()


def count(events: Events, event: LogEvent) -> int:
    return sum(each["event"] == event for each in events)


async def renewal_failed(events: Events) -> None:
    """Wait until the holder of the job has failed to renew its lease."""

    def tries() -> int:
        return sum(each["event"] == LogEvent.LEASES_NOT_RENEWED and each["leases"] for each in events)

    before = tries()
    # The first of them may have been under way; what follows from the second is there when the third is.
    await wait_until(lambda: tries() >= before + 3)


@asynccontextmanager
async def away(database: ScratchDatabase, events: Events) -> AsyncIterator[None]:
    """The server is stopped meanwhile, and the holder of the job has noticed it."""
    await asyncio.to_thread(database.server.kill)
    try:
        await renewal_failed(events)
        yield
    finally:
        await asyncio.to_thread(database.server.start)


async def runs(store: JobStore, job_id: str) -> None:
    """Wait until its first output is in the store."""

    async def is_reported() -> bool:
        return await output(store, job_id) == b"waits\n"

    await wait_until_true("the job has begun", is_reported)


async def has_ended(store: JobStore, job_id: str) -> None:
    async def ended() -> bool:
        return (await state_of(store, job_id))[0].final

    await wait_until_true("the job has ended", ended)


@pytest.fixture
def database(own_postgresql_database: ScratchDatabase) -> ScratchDatabase:
    return own_postgresql_database


async def test_a_job_outlives_an_outage_that_is_shorter_than_its_lease(database: ScratchDatabase) -> None:
    clock, gate = ManualClock(), GatedExecutor()
    with capture_logs() as events:
        async with open_store(database.url, clock=clock, retries=retries_after(0.0)) as store:
            run_id = await planned(store, job("wait"))
            (view,) = await store.jobs(run_id=run_id, limit=10)
            async with worker("anna", store, gate, clock), worker("bert", store, gate, clock):
                await runs(store, view.job_id)
                async with away(database, events):
                    clock.forward(LEASE - 1.0)
                    await renewal_failed(events)
                    gate.open.set()
                    await wait_until(lambda: gate.ended)
                await has_ended(store, view.job_id)
            (attempt,) = await store.attempts(view.job_id)
            assert (attempt.number, attempt.state, attempt.reason) == (
                1,
                JobState.SUCCEEDED,
                Reason.COMPLETED,
            )
            assert await output(store, view.job_id) == b"waits\ndone\n"
            assert [each.state for each in await outbox_statuses(store) if each.job_id][-1:] == ["succeeded"]
            assert [each.state for each in await outbox_statuses(store) if each.job_id].count(
                "succeeded"
            ) == 1
    assert gate.ended == [(1, "done")]
    assert count(events, LogEvent.LEASE_LOST) == 0


@pytest.mark.parametrize("ends", ["after it", "within it"])
async def test_a_job_whose_lease_ends_in_an_outage_succeeds_once(
    database: ScratchDatabase, ends: str
) -> None:
    clock, gate = ManualClock(), GatedExecutor()
    with capture_logs() as events:
        async with open_store(database.url, clock=clock, retries=retries_after(0.0)) as store:
            run_id = await planned(store, job("wait"))
            (view,) = await store.jobs(run_id=run_id, limit=10)
            async with worker("anna", store, gate, clock), worker("bert", store, gate, clock):
                await runs(store, view.job_id)
                async with away(database, events):
                    if ends == "within it":
                        # Its end is known, and cannot be stored before another worker has the job.
                        gate.open.set()
                        await wait_until(lambda: gate.ended)
                    clock.forward(LEASE + 1.0)
                    await wait_until(lambda: any(count(events, each) for each in GIVEN_UP))
                    await wait_until(lambda: gate.ended)
                gate.open.set()
                await has_ended(store, view.job_id)
            attempts = await store.attempts(view.job_id)
            assert [each.state for each in attempts].count(JobState.SUCCEEDED) == 1
            assert attempts[-1].state is JobState.SUCCEEDED
            for lost in attempts[:-1]:
                assert lost.reason in {Reason.LEASE_EXPIRED, Reason.AGENT_LOST, Reason.RELEASED}
            assert [each.state for each in await outbox_statuses(store) if each.job_id].count(
                "succeeded"
            ) == 1
    if ends == "after it":
        assert gate.ended == [(1, "killed"), (2, "done")]
    else:
        assert gate.ended[0] == (1, "done")


async def output(store: JobStore, job_id: str) -> bytes:
    page = await store.log(job_id)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)
