"""Commits show how many jobs are ahead of theirs, on every job store."""

import random
from collections.abc import AsyncIterator, Sequence

import pytest

from solstice_common.broker.protocol import Message, Published, PublishStatus
from solstice_common.messages import JobStatusV1
from solstice_orchestrator.stages.queue_reports import AT_ONCE, QueueReports
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job, job_request
from tests.stores import WORKER, ManualClock, claimed, outbox_statuses, planned, worker_record

REQUEST = {"source_name": "acme"}


class Listener:
    """A broker that only records published messages."""

    def __init__(self) -> None:
        self.statuses: list[JobStatusV1] = []

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self.statuses += [JobStatusV1.decode(message.body) for message in messages]
        return [Published(PublishStatus.CONFIRMED) for _ in messages]


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[JobStore]:
    async with open_store(store_url, clock=clock, public_url="https://ci.example") as opened:
        await opened.register(worker_record(WORKER))
        yield opened


def reports(store: JobStore, listener: Listener, worker: str = WORKER) -> QueueReports:
    return QueueReports(
        store=store,
        broker=listener,  # type: ignore[arg-type]  # of a broker, line reports call only `publish`
        worker_id=worker,
        public_url="https://ci.example",
        rng=random.Random(1),
    )


async def test_a_waiting_job_is_reported_again_when_its_queue_has_changed(
    store: JobStore, clock: ManualClock
) -> None:
    listener = Listener()
    reporter = reports(store, listener)
    for _ in range(6):
        await planned(store, request=job_request(**REQUEST))
    clock.forward(30)
    await store.register(worker_record(WORKER))
    assert await reporter.round(waited_seconds=10.0) == 6
    assert {status.description for status in listener.statuses} >= {"waiting: 5 ahead on linux"}
    assert await reporter.round(waited_seconds=10.0) == 0
    await claimed(store, free={"linux": 4})
    listener.statuses.clear()
    await reporter.round(waited_seconds=10.0)
    assert {str(status.description).partition(",")[0] for status in listener.statuses} == {
        "waiting: next on linux",
        "waiting: 1 ahead on linux",
    }


async def test_the_report_stands_between_its_state_and_the_next_one(
    store: JobStore, clock: ManualClock
) -> None:
    listener = Listener()
    for _ in range(2):
        await planned(store, request=job_request(**REQUEST))
    clock.forward(30)
    await store.register(worker_record(WORKER))
    await reports(store, listener).round(waited_seconds=10.0)
    await claimed(store, free={"linux": 4})
    in_order = {
        (each.run_id, each.context): each for each in await outbox_statuses(store) if each.state == "waiting"
    }
    running = {
        (each.run_id, each.context): each for each in await outbox_statuses(store) if each.state == "running"
    }
    for report in listener.statuses:
        key = (report.run_id, report.context)
        assert report.sequence == in_order[key].sequence < running[key].sequence
        assert report.revision is not None
        assert report.target_url == in_order[key].target_url
        assert report.source_name == "acme"


async def test_jobs_that_have_just_arrived_or_have_no_forge_get_no_report(
    store: JobStore, clock: ManualClock
) -> None:
    listener = Listener()
    await planned(store, request=job_request())
    clock.forward(30)
    await planned(store, request=job_request(**REQUEST))
    await store.register(worker_record(WORKER))
    assert await reports(store, listener).round(waited_seconds=10.0) == 0


async def test_a_round_publishes_a_few_reports(store: JobStore, clock: ManualClock) -> None:
    listener = Listener()
    specs = [job("true", name=f"job{number}") for number in range(AT_ONCE + 5)]
    await planned(store, *specs, request=job_request(**REQUEST))
    clock.forward(30)
    await store.register(worker_record(WORKER))
    reporter = reports(store, listener)
    assert await reporter.round(waited_seconds=10.0) == AT_ONCE
    assert await reporter.round(waited_seconds=10.0) == 5


async def test_one_of_several_orchestrators_reports(store: JobStore, clock: ManualClock) -> None:
    await planned(store, request=job_request(**REQUEST))
    await planned(store, request=job_request(**REQUEST))
    clock.forward(30)
    for worker in ("worker-b", WORKER):
        await store.register(worker_record(worker))
    assert await reports(store, Listener(), "worker-b").round(waited_seconds=10.0) == 0
    assert await reports(store, Listener(), WORKER).round(waited_seconds=10.0) == 2
