"""Requests in queues of priority classes are taken in, refused, or left behind."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from solstice_common.broker import Broker, open_broker
from solstice_common.broker.protocol import Message
from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1, Priority
from solstice_common.settings import BrokerSettings
from solstice_common.signing.key_file import KeyFile, read_public
from solstice_common.signing.keys import Right
from solstice_common.signing.signer import SigningBroker
from solstice_common.topology import QueueType, Route, full_topology, jobs_route, split_jobs_route
from solstice_forge.relay.publication import publication
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.stages.left_requests import LeftRequests
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job_request
from tests.contract.test_broker import drain
from tests.integration.orchestrator.stages.test_intake_and_outbox import task_of
from tests.polling import wait_until, wait_until_true
from tests.signing import EVERYWHERE, KeyPair
from tests.stores import sqlite_store
from tests.traffic import wait_for_ready

WAIT_SECONDS = 60
SCOPE_WITHOUT_PRIORITY = dataclasses.replace(EVERYWHERE, rights=frozenset(Right) - {Right.PRIORITY})
CRITICAL, HIGH, LOW = Priority.CRITICAL, Priority.HIGH, Priority.LOW


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with open_store(sqlite_store(tmp_path)) as opened:
        yield opened


@pytest.fixture
def split(broker_settings: BrokerSettings) -> Route:
    return split_jobs_route(broker_settings)


def with_priorities(settings: BrokerSettings, priorities: Literal["one", "split"]) -> BrokerSettings:
    return settings.model_copy(update={"amqp_priorities": priorities})


def intake_of(
    broker: Broker,
    store: JobStore,
    signatures: SignatureRules | None = None,
    metrics: Metrics | None = None,
) -> Intake:
    return Intake(
        broker=broker,
        store=store,
        metrics=metrics or Metrics(),
        rng=random.Random(1),
        signatures=signatures,
    )


@asynccontextmanager
async def taking_in(
    broker: Broker,
    store: JobStore,
    settings: BrokerSettings,
    signatures: SignatureRules | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[None]:
    """The intake of an orchestrator with these settings."""
    intake = intake_of(broker, store, signatures, metrics)
    run = intake.run(jobs_route(settings), full_topology(settings), prefetch=8)
    async with task_of(asyncio.create_task(run, name="intake")):
        yield


async def publish(broker: Broker | SigningBroker, *messages: Message) -> None:
    assert all(outcome.confirmed for outcome in await broker.publish(messages))


def by_key(request: JobRequestV1, route: Route) -> Message:
    """The request on that route, of any class."""
    return Message(
        exchange=route.exchange, routing_key=route.routing_key, body=request.encode(), type="jobrequest.v1"
    )


async def planned(store: JobStore, count: int) -> dict[str, Priority | None]:
    """The class of each run by its request, once there are so many."""
    found: dict[str, Priority | None] = {}

    async def are_all_there() -> bool:
        for task in await store.claim_planning("worker", 500):
            found[task.request.request_id] = task.request.priority
        return len(found) >= count

    await wait_until_true("the requests are runs", are_all_there)
    return found


async def test_requests_of_all_queues_become_runs_of_the_class_that_they_name(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route
) -> None:
    """They come by any queue, also by that of v1."""
    settings = with_priorities(broker_settings, "split")
    requests = {each: job_request(priority=each) for each in Priority}
    by_v1 = {each: job_request(priority=each) for each in Priority}
    unnamed = job_request()
    metrics, wrong = Metrics(), by_key(job_request(priority=LOW), split.of(HIGH))
    async with taking_in(broker, store, settings, metrics=metrics):
        await broker.declare(full_topology(settings))
        await publish(
            broker,
            replace(wrong, body=wrong.body.replace(b'"commit_sha":"', b'"commit_sha":"x')),
            *(publication(each.encode(), split, attempt=1) for each in requests.values()),
            *(publication(each.encode(), jobs_route(broker_settings), attempt=1) for each in by_v1.values()),
            by_key(unnamed, split.of(CRITICAL)),
        )
        found = await planned(store, 9)
        await wait_for_ready(broker, split.of(HIGH).dlq, 1)
    assert found == {
        **{request.request_id: each for each, request in (*requests.items(), *by_v1.items())},
        unnamed.request_id: None,
    }
    counted = metrics.render({}, broker.health).decode()
    for each, count in ((CRITICAL, 2), (HIGH, 2), (Priority.DEFAULT, 3), (LOW, 2)):
        assert (
            f'solstice_requests_total{{priority="{each}",reason="",verdict="admitted"}} {count}.0' in counted
        )
    assert 'solstice_dead_letters_total{priority="low"} 1.0' in counted


async def test_key_without_the_right_chooses_no_class_by_a_queue_either(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route, tmp_path: Path
) -> None:
    """The body decides, never the queue: it is what the key has signed."""
    settings = with_priorities(broker_settings, "split")
    everything, nothing = KeyPair("urgent"), KeyPair("plain", SCOPE_WITHOUT_PRIORITY)
    for pair in (everything, nothing):
        pair.publish(tmp_path / "keys.json")
    rules = SignatureRules(
        keys=KeyFile(tmp_path / "keys.json", read_public), v1_trust=V1_TRUST, max_age_seconds=None
    )
    may, may_not = (
        SigningBroker(broker, lambda: everything.signing),
        SigningBroker(broker, lambda: nothing.signing),
    )
    urgent, forbidden, unnamed, low = (
        job_request(trusted=False, **named)
        for named in ({"priority": CRITICAL}, {"priority": CRITICAL}, {}, {"priority": LOW})
    )
    async with taking_in(broker, store, settings, rules):
        await broker.declare(full_topology(settings))
        await publish(may, by_key(urgent, split.of(LOW)))
        await publish(
            may_not,
            by_key(forbidden, split.of(CRITICAL)),
            by_key(unnamed, split.of(CRITICAL)),
            by_key(low, split.of(HIGH)),
        )
        found = await planned(store, 3)
        (dead,) = await drain(broker, split.of(CRITICAL).dlq, 1)
    assert found == {urgent.request_id: CRITICAL, unnamed.request_id: None, low.request_id: LOW}
    assert dead.headers["x-solstice-reason"] == "missing_right"
    assert dead.body == forbidden.encode()


async def test_unknown_class_is_a_dead_letter_of_v1_s_queue(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route
) -> None:
    settings = with_priorities(broker_settings, "split")
    body = job_request(priority=LOW).encode().replace(b'"low"', b'"urgent"')
    async with taking_in(broker, store, settings):
        await broker.declare(full_topology(settings))
        await publish(broker, publication(body, split, attempt=1))
        (dead,) = await drain(broker, split.dlq, 1)
    assert dead.headers["x-solstice-reason"] == "invalid_field"
    assert "priority" in str(dead.headers["x-solstice-detail"])


def left_requests(
    broker: Broker, store: JobStore, settings: BrokerSettings, *, signatures: SignatureRules | None = None
) -> LeftRequests:
    return LeftRequests(
        broker=broker,
        open_broker=lambda: open_broker(settings.amqp_url, name="test (left)"),
        intake=lambda of: intake_of(of, store, signatures),
        queue_type=QueueType(settings.amqp_queue_type),
        prefetch=8,
        found=set(),
        poll_seconds=0.2,
    )


async def test_what_is_left_in_the_queues_of_classes_is_taken_with_one_queue_too(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route
) -> None:
    """Both that was there at the start and that comes later."""
    await broker.declare(split.topology(QueueType.QUORUM))
    requests = [job_request(priority=each) for each in Priority]
    early, late = requests[:2], requests[2:]
    await publish(broker, *(by_key(each, split.of(CRITICAL)) for each in early))
    left = left_requests(broker, store, broker_settings)
    async with task_of(asyncio.create_task(left.run(split.classes.values()))):
        assert len(await planned(store, 2)) == 2
        await publish(broker, *(by_key(each, split.of(LOW)) for each in late))
        assert len(await planned(store, 2)) == 2
        wrong = by_key(job_request(), split.of(HIGH))
        await publish(broker, replace(wrong, body=b"no request"))
        (dead,) = await drain(broker, split.of(HIGH).dlq, 1)
        assert dead.headers["x-solstice-queue"] == split.of(HIGH).queue
        assert dead.headers["x-solstice-reason"] == "not_json"
        for each in split.classes.values():
            await wait_for_ready(broker, each.queue, 0)
        assert left.found == {name for each in split.classes.values() for name in (each.queue, each.dlq)}


async def test_queues_of_classes_that_are_not_there_are_not_made(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route
) -> None:
    left = left_requests(broker, store, broker_settings)
    async with asyncio.timeout(WAIT_SECONDS):
        await left.run(split.classes.values())
    assert left.found == set()
    assert [await broker.depth(each.queue) for each in split.classes.values()] == [None] * 3


async def test_queue_of_other_arguments_is_left_alone_and_told(
    broker: Broker, store: JobStore, broker_settings: BrokerSettings, split: Route
) -> None:
    await broker.declare(split.of(LOW).topology(QueueType.CLASSIC))
    await publish(broker, by_key(job_request(), split.of(LOW)))
    left = left_requests(broker, store, broker_settings)
    with capture_logs() as logs:
        async with asyncio.timeout(WAIT_SECONDS):
            await left.run([split.of(LOW)])
    (event,) = [each for each in logs if each["event"] == "left_requests.mismatched"]
    assert "x-queue-type" in event["detail"]
    await wait_for_ready(broker, split.of(LOW).queue, 1)


async def test_what_is_left_is_not_taken_and_returned_while_the_store_is_away(
    broker: Broker,
    broker_settings: BrokerSettings,
    store: JobStore,
    split: Route,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RabbitMQ would make it a dead letter after twenty returns."""
    await broker.declare(split.topology(QueueType.QUORUM))
    request = job_request(priority=LOW)
    await publish(broker, by_key(request, split.of(LOW)))
    admit, consumers = store.admit, list[str]()

    async def away(*_: object) -> None:
        raise StoreUnavailable("the store", "gone")

    @asynccontextmanager
    async def counted(url: str) -> AsyncIterator[Broker]:
        consumers.append(url)
        async with open_broker(url, name="test (left)") as opened:
            yield opened

    monkeypatch.setattr(store, "admit", away)
    left = dataclasses.replace(
        left_requests(broker, store, broker_settings), open_broker=lambda: counted(broker_settings.amqp_url)
    )
    async with task_of(asyncio.create_task(left.run([split.of(LOW)]))):
        await wait_until(lambda: bool(consumers))
        await asyncio.sleep(4)
        assert len(consumers) == 1
        monkeypatch.setattr(store, "admit", admit)
        assert await planned(store, 1) == {request.request_id: LOW}
