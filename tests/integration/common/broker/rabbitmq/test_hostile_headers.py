"""Messages with poison headers become dead letters, and others behind them are consumed."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solstice_common.broker import (
    Broker,
    DeadLetter,
    Delivery,
    Message,
    PublishStatus,
    open_broker,
    open_dead_letter_queues,
)
from solstice_common.broker.dead_letters.dead_letter_operations import browse, drop
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.delivery import Refuse, Retry
from solstice_common.broker.receiving.receiver import Receiver
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, full_topology, jobs_route
from solstice_forge.metrics import Metrics as ForgeMetrics
from solstice_forge.statuses.intake import StatusIntake
from solstice_forge.statuses.protocol import StatusStore
from tests.polling import wait_until
from tests.raw_amqp import BrokerClosed, field, long, nested, properties, raw_publisher
from tests.recording_handler import GOOD, RecordingHandler
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.rabbitmq import Vhost
from tests.traffic import WAIT_SECONDS, drain, wait_for_ready

EVERY_VERSION = True

DEEP = properties(field(b"k", b"A", long(nested(1000))), correlation_id=b"poison")

kinds = st.sampled_from([bytes((kind,)) for kind in b"tbBsuIilLfdDTVSxAF\x00Qz"])
values = st.one_of(
    st.binary(max_size=12),
    st.just(b"\xff" * 8),
    st.binary(max_size=40).map(long),
    st.integers(1, 3000).map(lambda depth: long(nested(depth))),
    st.integers(1, 3000).map(lambda depth: long(nested(depth, kind=b"F"))),
    st.integers(1, 20_000).map(lambda count: long(b"V" * count)),
)
tables = st.lists(
    st.builds(field, st.sampled_from([b"k", b"x-solstice-attempt", b"\xff", b""]), kinds, values), max_size=5
).map(b"".join)
hostile = st.one_of(
    st.builds(properties, tables, correlation_id=st.none() | st.binary(max_size=20)),
    st.binary(max_size=30),
    st.integers(1, 30).map(lambda words: b"\xff\xff" * words),
    st.integers(30_000, 65_000).map(
        lambda size: properties(field(b"big", b"S", long(b"x" * 2 * size)), correlation_id=b"c")
    ),
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Broker]:
    async with open_broker(url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(full_topology(BrokerSettings(amqp_url=url)))
        yield broker


def send(url: str, route: Route, header: bytes, body: bytes) -> bool:
    """Whether the broker took it."""
    try:
        with raw_publisher(url) as publisher:
            return publisher.publish(route.exchange, route.routing_key, header, body)
    except BrokerClosed:
        return False


def test_every_hostile_header_is_a_dead_letter_and_the_good_job_behind_it_is_taken(
    rabbitmq_vhost: Vhost,
) -> None:
    url = rabbitmq_vhost.url
    route = jobs_route(BrokerSettings(amqp_url=url))

    async def scenario(headers: Sequence[bytes]) -> None:
        async with opened(url) as broker:
            handler = RecordingHandler()
            receiver = Receiver(handler, broker=broker, rng=random.Random(1))
            topology = full_topology(BrokerSettings(amqp_url=url))
            running = asyncio.create_task(receiver.run(route, topology, prefetch=4))
            consumed = sum([await asyncio.to_thread(send, url, route, each, b"not json") for each in headers])
            assert await asyncio.to_thread(send, url, route, properties(b""), GOOD)
            async with asyncio.timeout(WAIT_SECONDS):
                await handler.arrived.wait()
            dead = await drain(broker, route.dlq, consumed) if consumed else []
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])
        assert [dead_letter.headers.get("x-solstice-reason") for dead_letter in dead] == [
            "not_json"
        ] * consumed
        assert {dead_letter.body for dead_letter in dead} <= {b"not json"}

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(hostile, min_size=4, max_size=8))
    def publish_each(headers: Sequence[bytes]) -> None:
        asyncio.run(scenario([DEEP, *headers]))

    publish_each()


def test_hostile_dead_letters_can_be_looked_at_and_dropped(rabbitmq_vhost: Vhost) -> None:
    """One of them ended the connection of each look, which then showed none."""
    url = rabbitmq_vhost.url
    route = jobs_route(BrokerSettings(amqp_url=url))

    async def scenario(headers: Sequence[bytes]) -> None:
        async with opened(url), open_dead_letter_queues(url, name="test") as queues:
            # A dead letter comes by any routing key.
            by = Route(exchange=route.dlx, queue="", routing_key="\udcff", dlx="", dlq="")
            written = sum([await asyncio.to_thread(send, url, by, each, b"not json") for each in headers])
            found = await browse(queues, [route.dlq], Selection(), lambda each: each)
            for each in found:
                json.dumps(each.whole_document())
            # Two that say the same are one.
            assert len(await drop(queues.queue(route.dlq), Selection())) == len(found) <= written
            assert await queues.queue(route.dlq).count() == 0

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(hostile, min_size=4, max_size=8))
    def publish_each(headers: Sequence[bytes]) -> None:
        asyncio.run(scenario([DEEP, *headers]))

    publish_each()


@pytest.mark.parametrize("at_fault", ["examine", "refused"])
async def test_a_mistake_of_ours_in_reading_a_message_costs_that_message_alone(
    rabbitmq_vhost: Vhost, at_fault: str
) -> None:
    """An unforeseen exception of the code that reads or refuses a message."""

    class CrashingHandler(RecordingHandler):
        def examine(self, delivery: Delivery) -> bytes | Refuse:
            if at_fault == "examine" and delivery.body == b"not json":
                raise RecursionError("nobody thought of this")
            return super().examine(delivery)

        def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
            raise RecursionError("nobody thought of this")

        def on_error(self, message: bytes | None, error: Exception, refusal: Refuse) -> None:
            assert message is None
            assert isinstance(error, RecursionError)

    url, handler = rabbitmq_vhost.url, CrashingHandler()
    route = jobs_route(BrokerSettings(amqp_url=url))
    async with opened(url) as broker:
        receiver = Receiver(handler, broker=broker, rng=random.Random(1))
        for body in (GOOD, b"not json", GOOD):
            assert await asyncio.to_thread(send, url, route, properties(b""), body)
        # All three in one batch: the good ones before and behind it are kept.
        running = asyncio.create_task(
            receiver.run(route, full_topology(BrokerSettings(amqp_url=url)), prefetch=4)
        )
        (dead_letter,) = await drain(broker, route.dlq, 1)
        await wait_until(lambda: handler.consumed == 2)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])
        depth = await broker.depth(route.queue)
    assert dead_letter.body == b"not json"
    assert dead_letter.headers["x-solstice-reason"] == "internal_error"
    assert depth is not None
    assert depth.ready == 0


async def test_a_mistake_of_ours_in_reading_a_status_costs_that_status_alone(
    rabbitmq_vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(body: bytes, _has_remote: Mapping[str, bool]) -> Refuse:
        if body == GOOD:
            return Refuse(reason="not_json", detail="as it should be")
        raise RecursionError("nobody thought of this")

    monkeypatch.setattr("solstice_forge.statuses.intake.reportable", mistaken)
    url = rabbitmq_vhost.url
    async with opened(url) as broker:
        intake = StatusIntake(
            broker=broker,
            store=cast("StatusStore", None),  # nothing is to be kept
            has_remote={},
            metrics=ForgeMetrics(),
            rng=random.Random(1),
        )
        for body in (b"not json", GOOD):
            assert await asyncio.to_thread(send, url, STATUSES, properties(b""), body)
        topology = full_topology(BrokerSettings(amqp_url=url))
        running = asyncio.create_task(intake.run(STATUSES, topology, prefetch=4))
        dead_letters = await drain(broker, STATUSES.dlq, 2)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])
    reasons = {dead_letter.body: dead_letter.headers["x-solstice-reason"] for dead_letter in dead_letters}
    assert reasons == {b"not json": "internal_error", GOOD: "not_json"}


async def test_a_message_with_a_thousand_nested_arrays_ends_no_orchestrator(
    rabbitmq_vhost: Vhost, tmp_path: Path
) -> None:
    """It ended each with a RecursionError, again after every restart."""
    url = rabbitmq_vhost.url
    shared_files = SharedFiles(directory=tmp_path)
    jobs = jobs_route(BrokerSettings(amqp_url=url))
    async with opened(url) as broker:
        with orchestrator(shared_files, AMQP_URL=url) as process:
            for route in (jobs, CANCELS):
                assert await asyncio.to_thread(send, url, route, DEEP, b"not json")
                (dead_letter,) = await drain(broker, route.dlq, 1)
                check_dead_letter(dead_letter)
            # As the broker itself dead-letters it: with its own headers.
            assert await asyncio.to_thread(send, url, replace(jobs, exchange=jobs.dlx), DEEP, b"not json")
            answer = await asyncio.to_thread(
                httpx2.get, f"{process.url}/api/v1/dead-letters", trust_env=False
            )
            assert [each["request_id"] for each in answer.json()["dead_letters"]] == ["poison"]
            assert process.process.poll() is None
            process.terminate()
            assert await asyncio.to_thread(process.ended) == 0


async def test_a_status_with_poison_in_its_headers_ends_no_intake(rabbitmq_vhost: Vhost) -> None:
    nothing_reported: Mapping[str, bool] = {}
    url = rabbitmq_vhost.url
    async with opened(url) as broker:
        intake = StatusIntake(
            broker=broker,
            store=cast("StatusStore", None),  # nothing is to be kept
            has_remote=nothing_reported,
            metrics=ForgeMetrics(),
            rng=random.Random(1),
        )
        topology = full_topology(BrokerSettings(amqp_url=url))
        running = asyncio.create_task(intake.run(STATUSES, topology, prefetch=4))
        assert await asyncio.to_thread(send, url, STATUSES, DEEP, b"not json")
        (dead_letter,) = await drain(broker, STATUSES.dlq, 1)
        check_dead_letter(dead_letter)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


def check_dead_letter(dead_letter: Delivery) -> None:
    assert (dead_letter.body, dead_letter.correlation_id) == (b"not json", "poison")
    assert dead_letter.headers["x-solstice-reason"] == "not_json"
    assert "k" not in dead_letter.headers


async def test_the_broker_keeps_unsettled_poison_and_its_dead_letter_queue_drops_it(
    rabbitmq_vhost: Vhost,
) -> None:
    """Since RabbitMQ 4.0, after 20 deliveries a message is dead-lettered, then dropped."""
    url = rabbitmq_vhost.url
    route = jobs_route(BrokerSettings(amqp_url=url))
    async with opened(url) as broker:
        rabbitmq_vhost.policy("^solstice.jobs", {"delivery-limit": 2})
        assert await asyncio.to_thread(send, url, route, DEEP, b"not json")

        async def put_back_until(queue: str, *, there: int) -> None:
            async with broker.consume(queue, prefetch=1) as consumer, asyncio.TaskGroup() as group:

                async def put_back() -> None:
                    while True:
                        batch = await consumer.batch()
                        await consumer.settle([(each, Retry(reason="crashed")) for each in batch])
                        seen.extend(batch)

                seen: list[Delivery] = []
                putting = group.create_task(put_back())
                await wait_until(lambda: len(seen) >= 3)
                await wait_for_ready(broker, route.dlq, there)
                putting.cancel()

        await put_back_until(route.queue, there=1)
        await put_back_until(route.dlq, there=0)
        depths = [await broker.depth(queue) for queue in (route.queue, route.dlq)]
    assert [depth and depth.ready for depth in depths] == [0, 0]


@pytest.mark.parametrize("size", [140_000, 400_000])
async def test_headers_above_the_frame_are_refused_and_cost_no_connection(
    rabbitmq_vhost: Vhost, size: int
) -> None:
    url = rabbitmq_vhost.url
    route = jobs_route(BrokerSettings(amqp_url=url))

    def message(headers: Mapping[str, str]) -> Message:
        return Message(
            exchange=route.exchange, routing_key=route.routing_key, body=b"1", type="t", headers=headers
        )

    async with opened(url) as broker:
        too_large, small = await broker.publish([message({"h": "x" * size}), message({})])
    assert too_large.status is PublishStatus.REJECTED
    assert "one frame to this broker carries" in too_large.detail
    assert small.confirmed


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "t" * 256},
        {"message_id": "m" * 256},
        {"timestamp": datetime(1960, 1, 1, tzinfo=UTC)},
        {"headers": {"x": "y" * 200_000}},
    ],
    ids=["type", "message id", "time", "headers"],
)
async def test_what_amqp_cannot_carry_is_rejected_and_the_rest_put_back(
    rabbitmq_vhost: Vhost, changes: dict[str, Any]
) -> None:
    async with opened(rabbitmq_vhost.url), open_dead_letter_queues(rabbitmq_vhost.url, name="test") as queues:
        dead = queues.queue(STATUSES.dlq)
        outcomes = await dead.put_back(
            [DeadLetter(queue=STATUSES.dlq, body=b"1", **changes), DeadLetter(queue=STATUSES.dlq, body=b"2")]
        )
        assert [each.status for each in outcomes] == [PublishStatus.REJECTED, PublishStatus.CONFIRMED]
        found = await browse(queues, [STATUSES.dlq], Selection(), lambda each: each.dead_letter.body)
    assert found == [b"2"]
