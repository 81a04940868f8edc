"""Requests to cancel on their way from a real broker into a real store."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from solstice_common.broker.protocol import Broker, Message
from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobCancelV1
from solstice_common.messages.states import RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, full_topology
from solstice_common.values.times import format_seconds
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Cancelled
from tests.builders import job_cancel, job_request
from tests.integration.orchestrator.stages.test_intake_and_outbox import emptied, received, task_of
from tests.servers.postgresql import ScratchDatabase
from tests.stores import planned, wait_for_stored

WAIT_SECONDS = 60
REQUESTED_AT = 1_770_000_000.0


@pytest.fixture
async def store(store_database: ScratchDatabase) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url) as opened:
        yield opened


class FailingStore:
    """A store that is unavailable while `away`, and breaks on one cancel."""

    def __init__(self, store: JobStore) -> None:
        self._store, self.away, self.called = store, False, asyncio.Event()
        self.broken_by = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        self.called.set()
        if self.away:
            raise StoreUnavailable("the test's store", "it is in a mood")
        if self.broken_by in {cancel.cancel_id for cancel in cancels}:
            raise ValueError("a bug")
        return await self._store.cancel_changes(cancels)


@asynccontextmanager
async def running_intake(broker: Broker, store: object, settings: BrokerSettings) -> AsyncIterator[None]:
    intake = CancelIntake(
        broker=broker,
        store=store,  # type: ignore[arg-type]  # what a Moody lacks it has from the store
        metrics=Metrics(),
        rng=random.Random(1),
    )
    run = intake.run(CANCELS, full_topology(settings), prefetch=64)
    async with task_of(asyncio.create_task(run, name="cancels")):
        yield


def cancel_request(number: int, seconds: float = 1) -> JobCancelV1:
    return job_cancel(change_number=number, submitted_at=format_seconds(REQUESTED_AT + seconds))


async def publish(broker: Broker, *bodies: bytes) -> None:
    outcomes = await broker.publish(
        [
            Message(
                exchange=CANCELS.exchange, routing_key=CANCELS.routing_key, body=body, type="jobcancel.v1"
            )
            for body in bodies
        ]
    )
    assert all(outcome.confirmed for outcome in outcomes)


async def run_of(store: JobStore, number: int, *, is_planned: bool = True) -> str:
    request = job_request(change_number=number, submitted_at=format_seconds(REQUESTED_AT))
    if is_planned:
        return await planned(store, request=request)
    (admission,) = await store.admit([request])
    return admission.run_id


async def wait_for_state(store: JobStore, run_id: str, state: RunState) -> None:
    await wait_for_stored(
        store, lambda: store.run(run_id), lambda run: run is not None and run.state is state
    )


async def test_cancels_are_carried_out_and_poison_goes_to_the_dead_letters(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings
) -> None:
    first, second, other = [await run_of(store, number) for number in (1, 2, 3)]
    await publish(
        broker, cancel_request(1).encode(), b"poison", job_request().encode(), cancel_request(2).encode()
    )
    with capture_logs() as logs:
        async with running_intake(broker, store, broker_settings):
            dead_letters = await received(broker, CANCELS.dlq, 2)
            for run_id in (first, second):
                await wait_for_state(store, run_id, RunState.CANCELLED)
            await emptied(broker, CANCELS.queue)
    assert {dead_letter.headers["x-solstice-reason"] for dead_letter in dead_letters} == {
        "not_json",
        "unknown_version",
    }
    await wait_for_state(store, other, RunState.WAITING)
    saved = {one["change_number"]: one for one in logs if one["event"] == "cancel.stored"}
    assert (saved[1]["run_ids"], saved[1]["reason"], saved[1]["sender"]) == (
        [first],
        "runs_ended",
        "ada-brook",
    )


async def test_a_cancel_of_an_unknown_change_is_acked_and_the_log_says_why(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings
) -> None:
    with capture_logs() as logs:
        async with running_intake(broker, store, broker_settings):
            await publish(broker, cancel_request(9).encode())
            await wait_for_event(lambda: any(one["event"] == "cancel.stored" for one in logs))
            await emptied(broker, CANCELS.queue)
    (saved,) = (one for one in logs if one["event"] == "cancel.stored")
    assert (saved["reason"], saved["run_ids"]) == ("unknown_change", [])
    late = await run_of(store, 9, is_planned=False)
    await wait_for_state(store, late, RunState.CANCELLED)


async def test_a_store_that_is_away_loses_no_cancel(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings
) -> None:
    run_id, failing_store = await run_of(store, 1), FailingStore(store)
    failing_store.away = True
    async with running_intake(broker, failing_store, broker_settings):
        await publish(broker, cancel_request(1).encode())
        async with asyncio.timeout(WAIT_SECONDS):
            await failing_store.called.wait()
    # It was not acked, and is delivered again to the next consumer.
    async with running_intake(broker, store, broker_settings):
        await wait_for_state(store, run_id, RunState.CANCELLED)
        await emptied(broker, CANCELS.queue)


async def test_a_cancel_that_breaks_us_does_not_stop_the_others(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings
) -> None:
    runs, cancels = (
        [await run_of(store, number) for number in (1, 2, 3)],
        [cancel_request(n) for n in (1, 2, 3)],
    )
    failing_store = FailingStore(store)
    failing_store.broken_by = cancels[1].cancel_id
    await publish(broker, *[each.encode() for each in cancels])
    async with running_intake(broker, failing_store, broker_settings):
        (dead_letter,) = await received(broker, CANCELS.dlq, 1)
        for run_id in (runs[0], runs[2]):
            await wait_for_state(store, run_id, RunState.CANCELLED)
    assert dead_letter.headers["x-solstice-reason"] == "internal_error"
    assert dead_letter.body == cancels[1].encode()
    await wait_for_state(store, runs[1], RunState.WAITING)


async def wait_for_event(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not fact():  # noqa: ASYNC110  a log sends no notification
            await asyncio.sleep(0.02)
