"""From a real broker into a store and back: poison, outages, order, dead letters."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from solstice_common.broker import Broker, Delivery, Message
from solstice_common.broker.delivery import Ack
from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1, JobStatusV1
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, Route, full_topology
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.backlog import JobBacklog
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.stages.outbox_relay import OutboxRelay
from solstice_orchestrator.store.protocol import Admission
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from tests.builders import job_request
from tests.stores import CHECKOUT_ERRORED, FAILED, ManualClock, claimed, planned, running, store_file

WAIT_SECONDS = 60


class FailingStore(SqliteStore):
    """A store that is unavailable on demand, and counts the calls."""

    away = False
    calls = 0
    broken_by: str | None = None

    async def admit(
        self,
        requests: Sequence[JobRequestV1],
        bodies: Sequence[bytes] | None = None,
        signatures: Sequence[str] | None = None,
    ) -> Sequence[Admission]:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("the test's store", "it is in a mood")
        if self.broken_by in {request.request_id for request in requests}:
            raise ValueError("a bug")
        return await super().admit(requests, bodies, signatures)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[FailingStore]:
    rng = random.Random(1)
    rules = StoreRules(new_id=id_source(rng), rng=rng, holder="test")
    async with FailingStore.open(store_file(tmp_path), rules=rules, clock=clock) as opened:
        assert isinstance(opened, FailingStore)
        yield opened


@asynccontextmanager
async def task_of(work: "asyncio.Task[None]") -> AsyncIterator[None]:
    try:
        yield
    finally:
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()


@asynccontextmanager
async def running_intake(
    broker: Broker,
    store: FailingStore,
    jobs: Route,
    settings: BrokerSettings,
    *,
    prefetch: int = 64,
    backlog: JobBacklog | None = None,
    early: EarlyFetches | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[None]:
    intake = Intake(
        broker=broker,
        store=store,
        metrics=Metrics(),
        rng=random.Random(1),
        backlog=backlog,
        early=early,
        clock=clock,
    )
    run = intake.run(jobs, full_topology(settings), prefetch=prefetch)
    async with task_of(asyncio.create_task(run, name="intake")):
        yield


@asynccontextmanager
async def running_outbox(
    broker: Broker, store: FailingStore, jobs: Route, settings: BrokerSettings
) -> AsyncIterator[OutboxRelay]:
    outbox = OutboxRelay(
        store=store,
        broker=broker,
        jobs=jobs,
        topology=full_topology(settings),
        metrics=Metrics(),
        rng=random.Random(1),
    )
    async with task_of(asyncio.create_task(outbox.run(), name="outbox")):
        yield outbox


def message(jobs: Route, body: bytes) -> Message:
    return Message(exchange=jobs.exchange, routing_key=jobs.routing_key, body=body, type="jobrequest.v1")


async def publish(broker: Broker, jobs: Route, *bodies: bytes) -> None:
    outcomes = await broker.publish([message(jobs, body) for body in bodies])
    assert all(outcome.confirmed for outcome in outcomes)


async def until(store: FailingStore, condition: Callable[[], bool], *, runs: int | None = None) -> None:
    """Wait for a condition that a change in the store, or time, makes true."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            changed.clear()
            known = len((await store.runs(limit=10_000)).runs)
            if condition() and runs in {None, known}:
                return
            try:
                async with asyncio.timeout(0.1):
                    await changed.wait()
            except TimeoutError:
                continue


async def received(broker: Broker, queue: str, count: int) -> list[Delivery]:
    """The first `count` messages of a queue, taken off it."""
    received_batch: list[Delivery] = []
    async with asyncio.timeout(WAIT_SECONDS), broker.consume(queue, prefetch=500) as consumer:
        while len(received_batch) < count:
            batch = await consumer.batch()
            await consumer.settle([(delivery, Ack()) for delivery in batch])
            received_batch += batch
    return received_batch


async def emptied(broker: Broker, queue: str) -> None:
    """Wait until the queue has no ready message."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (depth := await broker.depth(queue)) is None or depth.ready:  # noqa: ASYNC110  the broker sends no notification
            await asyncio.sleep(0.05)


async def test_planning_learns_of_requests_before_they_are_stored(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    store.away, early, seen = True, EarlyFetches(), set[str]()
    request = job_request()
    later = job_request(not_before=format_seconds(time.time() + 3600))
    with early.through(lambda each: seen.add(each.request_id)):
        await publish(broker, jobs, request.encode(), later.encode())
        async with running_intake(broker, store, jobs, broker_settings, early=early):
            await until(store, lambda: bool(seen), runs=0)
            store.away = False
            await until(store, lambda: True, runs=2)
    assert seen == {request.request_id}


async def test_poison_goes_to_the_dead_letters_and_the_next_message_goes_on(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    good = [job_request() for _ in range(3)]
    await publish(
        broker,
        jobs,
        good[0].encode(),
        b"\xff not utf-8",
        good[1].encode(),
        b'{"schema_version":"jobrequest.v9"}',
        good[2].encode(),
    )
    async with running_intake(broker, store, jobs, broker_settings):
        dead_letters = await received(broker, jobs.dlq, 2)
        await until(store, lambda: True, runs=3)
        # Messages that were stored but not acked when the intake ends are delivered to another consumer.
        await emptied(broker, jobs.queue)
    assert sorted(str(dead_letter.headers["x-solstice-reason"]) for dead_letter in dead_letters) == [
        "not_utf8",
        "unknown_version",
    ]
    for request in good:
        assert await store.run_of_request(request.request_id) is not None


async def test_a_delayed_request_is_stored_at_once_and_uses_no_room(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings, clock: ManualClock
) -> None:
    backlog = JobBacklog(store=store, most=10, metrics=Metrics())
    tonight = [job_request(not_before=format_seconds(clock() + 3600)) for _ in range(100)]
    never = job_request(not_before="9999-12-31T23:59:59Z")
    await publish(broker, jobs, never.encode(), *(request.encode() for request in tonight))
    async with running_intake(broker, store, jobs, broker_settings, backlog=backlog, clock=clock):
        await until(store, lambda: True, runs=100)
        await backlog.recount()
        assert not backlog.paused
        await publish(broker, jobs, job_request().encode())
        await until(store, lambda: True, runs=101)
        (dead_letter,) = await received(broker, jobs.dlq, 1)
        assert dead_letter.body == never.encode()
        assert dead_letter.headers["x-solstice-reason"] == "not_before_too_far"
        # Their time has come: now they are work like any other.
        clock.forward(3600)
        await store.claim_planning("somebody", 1)
        await backlog.recount()
        assert backlog.paused
        await emptied(broker, jobs.queue)


async def test_a_store_that_is_away_pauses_intake_and_nothing_is_lost(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    requests = [job_request() for _ in range(200)]
    store.away = True
    async with running_intake(broker, store, jobs, broker_settings, prefetch=10):
        await publish(broker, jobs, *[request.encode() for request in requests])
        await until(store, lambda: store.calls >= 5)
        depth = await broker.depth(jobs.queue)
        assert depth is not None
        assert depth.ready == 190, "what is not unacked here stays with the broker"
        store.away = False
        await until(store, lambda: True, runs=200)
        await emptied(broker, jobs.queue)
    async with running_intake(broker, store, jobs, broker_settings):
        # An unacked message would be delivered again now, before this one.
        await publish(broker, jobs, job_request().encode())
        await until(store, lambda: True, runs=201)


async def test_poison_does_not_wait_for_the_store(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    store.away = True
    async with running_intake(broker, store, jobs, broker_settings):
        await publish(broker, jobs, job_request().encode(), b"poison")
        assert len(await received(broker, jobs.dlq, 1)) == 1


async def test_a_request_that_breaks_us_does_not_stop_the_others(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    requests = [job_request() for _ in range(5)]
    store.broken_by = requests[2].request_id
    await publish(broker, jobs, *[request.encode() for request in requests])
    async with running_intake(broker, store, jobs, broker_settings):
        (dead_letter,) = await received(broker, jobs.dlq, 1)
        await until(store, lambda: True, runs=4)
    assert (dead_letter.body, dead_letter.headers["x-solstice-reason"]) == (
        requests[2].encode(),
        "internal_error",
    )
    assert "a bug" in str(dead_letter.headers["x-solstice-detail"])


async def test_an_intake_that_dies_before_its_ack_runs_nothing_twice(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    requests = [job_request() for _ in range(50)]
    await store.admit(requests)
    await publish(broker, jobs, *[request.encode() for request in requests])
    store.away = True
    async with running_intake(broker, store, jobs, broker_settings):
        await until(store, lambda: store.calls >= 3)
    store.away = False
    async with running_intake(broker, store, jobs, broker_settings):
        await publish(broker, jobs, job_request().encode())
        await until(store, lambda: True, runs=51)
        await emptied(broker, jobs.queue)


async def test_what_happened_is_reported_once_and_in_order(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    for _ in range(5):
        claim = await running(store)
        await store.finish(claim.key, FAILED)
    rows = await store.outbox(1000)
    async with running_outbox(broker, store, jobs, broker_settings):
        deliveries = await received(broker, STATUSES.queue, len(rows))
    assert [delivery.body for delivery in deliveries] == [row.body for row in rows]
    for delivery in deliveries:
        status = JobStatusV1.decode(delivery.body)
        assert (delivery.type, delivery.correlation_id) == ("jobstatus.v1", status.request_id)


async def test_finishing_sends_the_rest_and_then_returns(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings
) -> None:
    await store.admit([job_request() for _ in range(600)])
    outbox = OutboxRelay(
        store=store,
        broker=broker,
        jobs=jobs,
        topology=full_topology(broker_settings),
        metrics=Metrics(),
        rng=random.Random(1),
    )
    outbox.finish()
    async with asyncio.timeout(WAIT_SECONDS):
        await outbox.run()
    assert await store.outbox(10) == ()
    assert len(await received(broker, STATUSES.queue, 600)) == 600


async def test_a_spent_budget_ends_in_the_dead_letters_with_its_history(
    broker: Broker, store: FailingStore, jobs: Route, broker_settings: BrokerSettings, clock: ManualClock
) -> None:
    request = job_request()
    await planned(store, request=request)
    for _ in range(MAX_ATTEMPTS):
        clock.forward(1000)
        (claim,) = await claimed(store)
        await store.finish(claim.key, CHECKOUT_ERRORED)
    async with running_outbox(broker, store, jobs, broker_settings):
        (dead_letter,) = await received(broker, jobs.dlq, 1)
    assert dead_letter.body == request.encode()
    assert dead_letter.headers["x-solstice-reason"] == "checkout_failed"
    assert str(dead_letter.headers["x-solstice-history"]).count("no route to host") == MAX_ATTEMPTS
