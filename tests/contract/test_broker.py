"""What every broker promises (`broker/protocol.py`), sentence by sentence."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest

from solstice_common.broker import (
    Broker,
    Consumer,
    Delivery,
    Message,
    PublishStatus,
    open_broker,
    open_dead_letter_queues,
)
from solstice_common.broker.capabilities import Certainty, QueueMeasure
from solstice_common.broker.dead_letters.dead_letter_operations import browse
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.delivery import Ack, Refuse, RefuseReason, Retry, Verdict
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.protocol import HELD_BODY_BYTES, NO_HEADERS, HeaderValue
from solstice_common.errors import TopologyMismatch
from solstice_common.settings import known_broker_url
from solstice_common.topology import Binding, Exchange, Queue, QueueType, Route, Topology
from solstice_common.values.times import parse_timestamp
from tests.polling import wait_until
from tests.traffic import wait_for_ready

OpenBroker = Callable[[str], AbstractAsyncContextManager[Broker]]

EVERY_VERSION = True
"""See `tests.brokers`."""
WAIT_SECONDS = 30
ALL_BYTES = bytes(range(256))


def message(
    body: bytes = b"{}",
    *,
    exchange: str = "orders",
    routing_key: str = "order.v1",
    headers: Mapping[str, HeaderValue] = NO_HEADERS,
    correlation_id: str | None = None,
    priority: int | None = None,
) -> Message:
    return Message(
        exchange=exchange,
        routing_key=routing_key,
        body=body,
        type="order.v1",
        correlation_id=correlation_id,
        headers=headers,
        priority=priority,
    )


def numbered(count: int) -> list[Message]:
    return [message(str(number).encode()) for number in range(count)]


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


async def publish(broker: Broker, *messages: Message) -> None:
    outcomes = await broker.publish(messages)
    assert [outcome.status for outcome in outcomes] == [PublishStatus.CONFIRMED] * len(messages)


async def collect(consumer: Consumer, count: int, verdict: Verdict | None = None) -> list[Delivery]:
    """Collect the next `count` deliveries, settling each with `verdict` if one is given."""
    collected: list[Delivery] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(collected) < count:
            batch = await consumer.batch()
            collected.extend(batch)
            if verdict is not None:
                await consumer.settle([(delivery, verdict) for delivery in batch])
    assert len(collected) == count
    return collected


async def drain(broker: Broker, queue: str, count: int) -> list[Delivery]:
    async with broker.consume(queue, prefetch=100) as consumer:
        return await collect(consumer, count, Ack())


class TestPublishing:
    async def test_a_confirmed_message_is_in_the_queue(self, broker: Broker, route: Route) -> None:
        await publish(broker, message(b"kept"))
        await wait_for_ready(broker, route.queue, 1)
        assert [delivery.body for delivery in await drain(broker, route.queue, 1)] == [b"kept"]

    async def test_messages_of_one_call_arrive_in_the_order_given(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(500))
        assert numbers(await drain(broker, route.queue, 500)) == list(range(500))

    async def test_messages_of_successive_calls_arrive_in_order(self, broker: Broker, route: Route) -> None:
        for number in range(20):
            await publish(broker, message(str(number).encode()))
        assert numbers(await drain(broker, route.queue, 20)) == list(range(20))

    async def test_many_tasks_publish_at_once_and_each_call_keeps_its_order(
        self, broker: Broker, route: Route
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            for task in range(50):
                tasks.create_task(
                    publish(broker, *(message(str(task * 10 + number).encode()) for number in range(10)))
                )
        arrived = numbers(await drain(broker, route.queue, 500))
        assert sorted(arrived) == list(range(500))
        for task in range(50):
            own = [number for number in arrived if number // 10 == task]
            assert own == sorted(own)

    async def test_nothing_to_publish_is_published_at_once(self, broker: Broker) -> None:
        assert list(await broker.publish([])) == []

    async def test_outcomes_stand_in_the_order_of_the_messages(self, broker: Broker, route: Route) -> None:
        outcomes = await broker.publish(
            [
                message(b"1"),
                message(b"2", routing_key="nobody.v1"),
                message(b"3"),
                message(b"4", routing_key="nobody.v1"),
            ]
        )
        assert [outcome.status for outcome in outcomes] == [
            PublishStatus.CONFIRMED,
            PublishStatus.UNROUTABLE,
            PublishStatus.CONFIRMED,
            PublishStatus.UNROUTABLE,
        ]
        assert numbers(await drain(broker, route.queue, 2)) == [1, 3]

    async def test_a_message_for_no_queue_is_unroutable_and_says_why(self, broker: Broker) -> None:
        (outcome,) = await broker.publish([message(routing_key="nobody.v1")])
        assert outcome.status is PublishStatus.UNROUTABLE
        assert outcome.detail
        assert not outcome.confirmed

    async def test_a_message_for_no_exchange_is_rejected_and_the_broker_goes_on(
        self, broker: Broker, route: Route
    ) -> None:
        (outcome,) = await broker.publish([message(exchange="nowhere")])
        assert outcome.status is PublishStatus.REJECTED
        assert "nowhere" in outcome.detail
        await publish(broker, message(b"after"))
        assert [delivery.body for delivery in await drain(broker, route.queue, 1)] == [b"after"]

    async def test_headers_that_are_too_large_are_rejected_and_the_broker_goes_on(
        self, broker: Broker, route: Route
    ) -> None:
        too_large = message(
            b"1", exchange=route.exchange, routing_key=route.routing_key, headers={"h": "x" * 200_000}
        )
        outcomes = await broker.publish(
            [too_large, message(b"2", exchange=route.exchange, routing_key=route.routing_key)]
        )
        assert [outcome.status for outcome in outcomes] == [PublishStatus.REJECTED, PublishStatus.CONFIRMED]
        assert "its headers take 2" in outcomes[0].detail

    async def test_a_fanout_exchange_gives_each_queue_its_copy(self, broker: Broker) -> None:
        queues = ("copy.a", "copy.b")
        await broker.declare(
            Topology(
                exchanges=(Exchange(name="copies", kind="fanout"),),
                queues=tuple(Queue(name=name) for name in queues),
                bindings=tuple(Binding(exchange="copies", queue=name, routing_key="") for name in queues),
            )
        )
        await publish(broker, message(b"both", exchange="copies", routing_key="whatever"))
        for name in queues:
            assert [delivery.body for delivery in await drain(broker, name, 1)] == [b"both"]

    async def test_a_publish_that_is_cancelled_does_not_disturb_the_others(
        self, broker: Broker, route: Route
    ) -> None:
        calls = [asyncio.create_task(publish(broker, one)) for one in numbered(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False] * 10
        await publish(broker, message(b"99"))
        arrived: list[int] = []
        async with broker.consume(route.queue, prefetch=50) as consumer, asyncio.timeout(WAIT_SECONDS):
            while 99 not in arrived:
                arrived.extend(numbers(await consumer.batch()))
        assert set(range(1, 20, 2)) <= set(arrived)


class TestContents:
    @pytest.mark.parametrize(
        "body",
        [b"", b"\x00", ALL_BYTES, ALL_BYTES * (HELD_BODY_BYTES // 256), "Grüße, 世界".encode()],
        ids=["empty", "nul", "every byte", "the largest", "utf-8"],
    )
    async def test_a_body_arrives_byte_for_byte(self, broker: Broker, route: Route, body: bytes) -> None:
        await publish(broker, message(body))
        (delivery,) = await drain(broker, route.queue, 1)
        assert type(delivery.body) is bytes
        assert delivery.body == body

    @pytest.mark.parametrize(
        "value",
        ["", "text", "Grüße, 世界", "x" * 5000, 0, -1, 2**31, -(2**40), 2**62, True, False],
        ids=["empty", "text", "unicode", "long", "0", "-1", "2^31", "-2^40", "2^62", "true", "false"],
    )
    async def test_a_header_keeps_its_type_and_value(
        self, broker: Broker, route: Route, value: HeaderValue
    ) -> None:
        await publish(broker, message(headers={"x-solstice-thing": value}))
        (delivery,) = await drain(broker, route.queue, 1)
        assert delivery.headers["x-solstice-thing"] == value
        assert type(delivery.headers["x-solstice-thing"]) is type(value)

    async def test_the_properties_are_seen_by_the_reader(self, broker: Broker, route: Route) -> None:
        await publish(broker, message(b"x", correlation_id="request-7", priority=3))
        (delivery,) = await drain(broker, route.queue, 1)
        assert delivery.exchange == route.exchange
        assert delivery.routing_key == route.routing_key
        assert delivery.type == "order.v1"
        assert delivery.correlation_id == "request-7"
        assert delivery.message_id
        assert delivery.redelivered is False
        assert not set(delivery.headers) - {"x-delivery-count"}

    async def test_what_was_not_given_is_absent(self, broker: Broker, route: Route) -> None:
        await publish(broker, message())
        (delivery,) = await drain(broker, route.queue, 1)
        assert delivery.correlation_id is None

    async def test_every_publish_attempt_has_its_own_message_id(self, broker: Broker, route: Route) -> None:
        same = message()
        await publish(broker, same, same)
        await publish(broker, same)
        deliveries = await drain(broker, route.queue, 3)
        assert len({delivery.message_id for delivery in deliveries}) == 3

    async def test_headers_that_only_a_broker_may_write_are_not_published(
        self, broker: Broker, route: Route
    ) -> None:
        forged: dict[str, HeaderValue] = {
            "x-death": "forged",
            "x-first-death-reason": "forged",
            "x-last-death-queue": "forged",
            "x-delivery-count": 19,
            "x-acquired-count": 7,
            "x-solstice-kept": "yes",
        }
        await publish(broker, message(headers=forged))
        (delivery,) = await drain(broker, route.queue, 1)
        assert delivery.headers["x-solstice-kept"] == "yes"
        # RabbitMQ 3.10 counts from 0 on the first delivery already; that count is its own.
        assert delivery.headers.get("x-delivery-count", 0) == 0
        assert not set(delivery.headers) - {"x-solstice-kept", "x-delivery-count"}


class TestConsuming:
    async def test_a_waiting_consumer_is_woken_by_another_connection(
        self, broker: Broker, route: Route, another: OpenBroker
    ) -> None:
        async with another("publisher") as publisher, broker.consume(route.queue, prefetch=5) as consumer:
            waiting = asyncio.create_task(collect(consumer, 1, Ack()))
            await publisher.ready(WAIT_SECONDS)
            assert not waiting.done()
            await publish(publisher, message(b"wake"))
            assert [delivery.body for delivery in await waiting] == [b"wake"]

    async def test_a_consumer_never_holds_more_than_its_prefetch(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(20))
        unsettled: list[Delivery] = []
        seen: list[Delivery] = []
        async with broker.consume(route.queue, prefetch=3) as consumer, asyncio.timeout(WAIT_SECONDS):
            while len(seen) < 20:
                batch = await consumer.batch()
                assert batch
                seen.extend(batch)
                unsettled.extend(batch)
                assert len(unsettled) <= 3
                await consumer.settle([(unsettled.pop(0), Ack())])
        assert numbers(seen) == list(range(20))

    async def test_a_full_consumer_leaves_the_rest_to_the_queue(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(10))
        async with broker.consume(route.queue, prefetch=4) as consumer:
            unsettled = await collect(consumer, 4)
            waiting = asyncio.create_task(consumer.batch())
            await wait_for_ready(broker, route.queue, 6)
            assert not waiting.done()
            await consumer.settle([(unsettled[0], Ack())])
            async with asyncio.timeout(WAIT_SECONDS):
                assert numbers(await waiting) == [4]

    async def test_two_consumers_share_and_no_message_goes_to_both(
        self, broker: Broker, route: Route, another: OpenBroker
    ) -> None:
        seen: list[list[int]] = [[], []]
        all_seen = asyncio.Event()

        async def work(worker: Broker, own: list[int]) -> None:
            async with worker.consume(route.queue, prefetch=10) as consumer:
                while True:
                    batch = await consumer.batch()
                    own.extend(numbers(batch))
                    await consumer.settle([(delivery, Ack()) for delivery in batch])
                    if len(seen[0]) + len(seen[1]) >= 300:
                        all_seen.set()

        async with another("second") as second:
            await second.ready(WAIT_SECONDS)
            workers = [
                asyncio.create_task(work(broker, seen[0])),
                asyncio.create_task(work(second, seen[1])),
            ]
            async with asyncio.timeout(WAIT_SECONDS):
                while (depth := await broker.depth(route.queue)) is None or depth.consumers < 2:  # noqa: ASYNC110  asks a server
                    await asyncio.sleep(0.02)
                await publish(broker, *numbered(300))
                await all_seen.wait()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(seen[0] + seen[1]) == list(range(300))
        for own in seen:
            assert all(earlier < later for earlier, later in pairwise(own))

    async def test_both_of_two_consumers_get_work(
        self, broker: Broker, route: Route, another: OpenBroker
    ) -> None:
        await publish(broker, *numbered(2))
        async with another("second") as second, broker.consume(route.queue, prefetch=1) as one:
            (first,) = await collect(one, 1)
            async with second.consume(route.queue, prefetch=1) as two:
                (other,) = await collect(two, 1)
                assert {first.body, other.body} == {b"0", b"1"}
                await two.settle([(other, Ack())])
            await one.settle([(first, Ack())])
        await wait_for_ready(broker, route.queue, 0)

    async def test_a_subscribed_consumer_is_one_that_the_broker_knows(
        self, broker: Broker, route: Route
    ) -> None:
        async with broker.consume(route.queue, prefetch=1) as consumer:
            await wait_until(lambda: consumer.subscribed)
            depth = await broker.depth(route.queue)
            assert depth is not None
            assert depth.consumers == 1

    async def test_a_cancelled_wait_loses_nothing(self, broker: Broker, route: Route) -> None:
        rng = random.Random(7)
        seen: list[Delivery] = []
        async with broker.consume(route.queue, prefetch=10) as consumer, asyncio.timeout(WAIT_SECONDS):
            for number in range(60):
                waiting = asyncio.create_task(consumer.batch())
                await publish(broker, message(str(number).encode()))
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                waiting.cancel()
                try:
                    batch = await waiting
                except asyncio.CancelledError:
                    continue
                seen.extend(batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])
            while len(seen) < 60:
                batch = await consumer.batch()
                seen.extend(batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])
        assert numbers(seen) == list(range(60))


class TestSettling:
    async def test_an_acked_message_is_forgotten(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(2))
        async with broker.consume(route.queue, prefetch=2) as consumer:
            first, second = await collect(consumer, 2)
            await consumer.settle([(first, Ack())])
            await consumer.settle([(second, Retry(reason="store_unavailable"))])
            assert numbers(await collect(consumer, 1, Ack())) == [1]
        await wait_for_ready(broker, route.queue, 0)

    async def test_a_retried_message_comes_again_and_says_so(self, broker: Broker, route: Route) -> None:
        await publish(broker, message(b"0", headers={"x-solstice-kept": 1}, correlation_id="r"))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            (first,) = await collect(consumer, 1, Retry(reason="store_unavailable"))
            (again,) = await collect(consumer, 1, Retry(reason="store_unavailable"))
            (third,) = await collect(consumer, 1, Ack())
            # Its place among the others depends on the broker: at the front, except on RabbitMQ 3.10.
            await publish(broker, message(b"1"))
            (last,) = await collect(consumer, 1, Ack())
        assert [first.redelivered, again.redelivered, third.redelivered] == [False, True, True]
        assert numbers([first, again, third, last]) == [0, 0, 0, 1]
        assert again.correlation_id == "r"
        assert again.headers["x-solstice-kept"] == 1
        assert again.message_id == first.message_id
        assert last.redelivered is False

    async def test_settling_again_changes_nothing(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(3))
        refuse, retry = Refuse(reason="not_json", detail="must not be seen"), Retry(reason="late")
        async with broker.consume(route.queue, prefetch=3) as consumer:
            first, second, third = await collect(consumer, 3)
            await consumer.settle([(first, Ack()), (first, refuse), (second, Ack())])
            await consumer.settle([(first, Ack()), (second, retry), (second, refuse)])
            await consumer.settle([])
            await consumer.settle([(third, retry)])
            await consumer.settle([(third, Ack())])
            # Had one of them ended the link, or given back another message, this one would not come alone.
            (again,) = await collect(consumer, 1, Ack())
            assert again.body == b"2"
        await wait_for_ready(broker, route.queue, 0)
        await wait_for_ready(broker, route.dlq, 0)

    async def test_verdicts_may_come_out_of_order_and_mixed(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(6))
        async with broker.consume(route.queue, prefetch=6) as consumer:
            unsettled = await collect(consumer, 6)
            refuse, retry = Refuse(reason="not_json", detail="odd"), Retry(reason="later")
            await consumer.settle(
                [
                    (unsettled[5], Ack()),
                    (unsettled[0], refuse),
                    (unsettled[4], retry),
                    (unsettled[2], Ack()),
                    (unsettled[1], Ack()),
                    (unsettled[3], refuse),
                ]
            )
            assert numbers(await collect(consumer, 1, Ack())) == [4]
        assert sorted(numbers(await drain(broker, route.dlq, 2))) == [0, 3]
        await wait_for_ready(broker, route.queue, 0)

    async def test_many_tasks_settle_at_once(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(100))
        async with broker.consume(route.queue, prefetch=100) as consumer:
            unsettled = await collect(consumer, 100)
            random.Random(1).shuffle(unsettled)
            async with asyncio.TaskGroup() as tasks:
                for delivery in unsettled:
                    tasks.create_task(consumer.settle([(delivery, Ack())]))
        await wait_for_ready(broker, route.queue, 0)

    async def test_leaving_a_consumer_returns_what_it_held(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(3))
        async with broker.consume(route.queue, prefetch=3) as consumer:
            unsettled = await collect(consumer, 3)
            await consumer.settle([(unsettled[1], Ack())])
        await wait_for_ready(broker, route.queue, 2)
        again = await drain(broker, route.queue, 2)
        assert numbers(again) == [0, 2]
        assert [delivery.redelivered for delivery in again] == [True, True]

    async def test_settling_after_leaving_changes_nothing_and_does_not_raise(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, *numbered(1))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            (unsettled,) = await collect(consumer, 1)
        await consumer.settle([(unsettled, Ack())])
        assert numbers(await drain(broker, route.queue, 1)) == [0]

    async def test_leaving_the_broker_returns_what_its_consumers_held(
        self, broker: Broker, route: Route, another: OpenBroker
    ) -> None:
        await publish(broker, *numbered(2))
        async with another("leaver") as leaver:
            await leaver.ready(WAIT_SECONDS)
            async with leaver.consume(route.queue, prefetch=2) as consumer:
                await collect(consumer, 2)
        again = await drain(broker, route.queue, 2)
        assert [delivery.redelivered for delivery in again] == [True, True]


class TestRefusing:
    async def test_a_refused_message_is_a_dead_letter_with_its_reason(
        self, another: OpenBroker, route: Route, topology: Topology
    ) -> None:
        before = datetime.now(UTC)
        async with another("refuser") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(topology)
            await publish(
                broker, message(ALL_BYTES, correlation_id="request-7", headers={"x-solstice-key": "k"})
            )
            async with broker.consume(route.queue, prefetch=1) as consumer:
                (refused,) = await collect(
                    consumer, 1, Refuse(reason="invalid_field", detail="commit_sha: zu kurz, 世界")
                )
            (dead,) = await drain(broker, route.dlq, 1)
            await wait_for_ready(broker, route.queue, 0)
        assert dead.body == ALL_BYTES
        assert dead.type == "order.v1"
        assert dead.correlation_id == "request-7"
        assert dead.exchange == route.dlx
        assert dead.message_id not in {None, refused.message_id}
        assert dead.headers["x-solstice-key"] == "k"
        assert dead.headers["x-solstice-reason"] == "invalid_field"
        assert dead.headers["x-solstice-detail"] == "commit_sha: zu kurz, 世界"
        assert dead.headers["x-solstice-queue"] == route.queue
        assert dead.headers["x-solstice-refused-by"] == "refuser"
        assert dead.headers["x-solstice-attempt"] == 1
        at = parse_timestamp(str(dead.headers["x-solstice-refused-at"]))
        assert (at - before).total_seconds() > -0.01
        assert at <= datetime.now(UTC)

    async def test_a_dead_letter_that_is_replayed_and_refused_again_reports_the_last_refusal(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, message(b"replayed"))
        reasons: list[RefuseReason] = ["not_utf8", "not_json", "oversize"]
        for attempt, reason in enumerate(reasons, 1):
            async with broker.consume(route.queue, prefetch=1) as consumer:
                await collect(consumer, 1, Refuse(reason=reason, detail="still"))
            (dead,) = await drain(broker, route.dlq, 1)
            assert dead.headers["x-solstice-reason"] == reason
            assert dead.headers["x-solstice-attempt"] == attempt
            headers = {key: value for key, value in dead.headers.items() if isinstance(value, str | int)}
            await publish(broker, message(dead.body, headers={**headers, "x-solstice-attempt": attempt + 1}))

    async def test_a_dead_letter_that_was_redelivered_carries_no_count_of_the_broker(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, message(b"x"))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            await collect(consumer, 1, Retry(reason="later"))
            (again,) = await collect(consumer, 1, Refuse(reason="not_json", detail=""))
            assert again.redelivered
        (dead,) = await drain(broker, route.dlq, 1)
        assert dead.redelivered is False
        assert dead.headers.get("x-delivery-count", 0) == 0
        assert "x-death" not in dead.headers

    async def test_a_body_that_is_too_large_to_be_held_is_omitted_or_whole_and_the_dead_letter_has_it(
        self, broker: Broker, broker_url: str, route: Route
    ) -> None:
        body = ALL_BYTES * (900 * 1024 // 256)
        await publish(broker, message(body), message(b"1"))
        async with broker.consume(route.queue, prefetch=5) as consumer:
            large, small = await collect(consumer, 2)
            assert (large.body, large.omitted_bytes > 0) in {(b"", True), (body, False)}
            assert (small.body, small.omitted_bytes) == (b"1", 0)
            await consumer.settle([(large, Refuse(reason="oversize", detail="large")), (small, Ack())])
        await wait_for_ready(broker, route.dlq, 1)
        async with open_dead_letter_queues(broker_url, name="contract") as queues:
            (found,) = await browse(queues, [route.dlq], Selection(), lambda each: each, whole=True)
        assert found.dead_letter.body == body
        assert found.reason == "oversize"

    async def test_the_queue_goes_on_after_a_poison_message(self, broker: Broker, route: Route) -> None:
        await publish(broker, message(b"poison"), message(b"1"), message(b"2"))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            await collect(consumer, 1, Refuse(reason="not_json", detail="poison"))
            assert numbers(await collect(consumer, 2, Ack())) == [1, 2]
        assert [dead.body for dead in await drain(broker, route.dlq, 1)] == [b"poison"]


class TestWithoutDeadLetters:
    """`DEAD_LETTER_ENABLED=false`: messages that would become dead letters are dropped, and their reasons
    counted.
    """

    async def test_a_refused_message_is_forgotten_and_counted(self, broker_url: str, route: Route) -> None:
        dropped: list[str] = []
        async with open_broker(broker_url, name="dropping", on_dropped=dropped.append) as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(route.topology(QueueType.QUORUM))
            await publish(broker, *numbered(3))
            async with broker.consume(route.queue, prefetch=3) as consumer:
                first, second, third = await collect(consumer, 3)
                refuse = Refuse(reason="not_json", detail="poison")
                await consumer.settle([(first, Ack()), (second, refuse), (third, Ack())])
            await wait_for_ready(broker, route.queue, 0)
            await wait_for_ready(broker, route.dlq, 0)
        assert dropped == ["not_json"]

    async def test_a_dead_letter_of_our_own_is_not_published_and_the_others_of_the_call_are(
        self, broker_url: str, route: Route
    ) -> None:
        dropped: list[str] = []
        async with open_broker(broker_url, name="dropping", on_dropped=dropped.append) as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(route.topology(QueueType.QUORUM))
            dead = message(b"2", exchange=route.dlx, headers={"x-solstice-reason": "errored"})
            await publish(broker, message(b"1"), dead, message(b"3"))
            assert numbers(await drain(broker, route.queue, 2)) == [1, 3]
            await wait_for_ready(broker, route.dlq, 0)
        assert dropped == ["errored"]


class TestTopology:
    async def test_declaring_again_is_harmless(
        self, broker: Broker, route: Route, another: OpenBroker
    ) -> None:
        topology = route.topology(QueueType.QUORUM)
        await publish(broker, message(b"kept"))
        async with another("second") as second:
            await second.ready(WAIT_SECONDS)
            await asyncio.gather(broker.declare(topology), second.declare(topology), broker.declare(topology))
        await wait_for_ready(broker, route.queue, 1)
        assert await broker.depth(route.dlq) is not None

    async def test_each_queue_type_can_be_declared_and_used(
        self, another: OpenBroker, route: Route, topology: Topology
    ) -> None:
        async with another("typed") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(topology)
            await publish(broker, message(b"0"))
            assert numbers(await drain(broker, route.queue, 1)) == [0]

    async def test_a_queue_with_other_arguments_is_a_mismatch_that_names_both_sides(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, message(b"kept"))
        with pytest.raises(TopologyMismatch) as raised:
            await broker.declare(route.topology(QueueType.CLASSIC))
        assert raised.value.kind == "queue"
        assert raised.value.name == route.queue
        assert raised.value.declared_arguments["x-dead-letter-exchange"] == route.dlx
        assert raised.value.on_broker
        assert route.queue in str(raised.value)
        await publish(broker, message(b"after"))
        assert len(await drain(broker, route.queue, 2)) == 2

    async def test_an_exchange_of_another_kind_is_a_mismatch(self, broker: Broker, route: Route) -> None:
        wrong = Topology(exchanges=(Exchange(name=route.exchange, kind="fanout"),), queues=(), bindings=())
        with pytest.raises(TopologyMismatch) as raised:
            await broker.declare(wrong)
        assert raised.value.kind == "exchange"
        assert raised.value.name == route.exchange
        assert "direct" in raised.value.on_broker
        await publish(broker, message(b"after"))


class TestCapabilities:
    """What the broker declares (`Broker.capabilities`), as far as one connection can show it."""

    async def test_it_has_the_name_of_its_scheme_and_health_says_the_same(
        self, broker: Broker, broker_url: str
    ) -> None:
        assert broker.capabilities.transport == known_broker_url(broker_url) == broker.health.transport

    async def test_a_broker_is_degraded_unless_what_it_confirms_is_durable(self, broker: Broker) -> None:
        durable = broker.capabilities.durable_on_confirm is Certainty.YES
        assert durable == (broker.health.degraded is None)

    async def test_a_body_of_the_largest_size_is_taken_and_a_larger_one_known_to_be_taken_or_not(
        self, broker: Broker, route: Route
    ) -> None:
        limit = broker.capabilities.max_message_bytes or 16 << 20
        await publish(broker, message(bytes(limit)))
        (delivery,) = await drain(broker, route.queue, 1)
        assert delivery.body == bytes(limit) or delivery.omitted_bytes >= limit
        (outcome,) = await broker.publish([message(bytes(limit + 1))])
        # Unknown would be repeated forever.
        assert outcome.status in {PublishStatus.REJECTED, PublishStatus.CONFIRMED}
        await publish(broker, message(b"after"))
        confirmed_count = 1 + outcome.confirmed
        assert (await drain(broker, route.queue, confirmed_count))[-1].body == b"after"

    async def test_priority_changes_the_order_only_where_that_is_declared(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, message(b"1", priority=0), message(b"2", priority=9))
        order = numbers(await drain(broker, route.queue, 2))
        changed = {(1, 2): Certainty.NO, (2, 1): Certainty.YES}[order[0], order[1]]
        assert broker.capabilities.priorities in {changed, Certainty.UNKNOWN}

    async def test_a_repeat_is_recognised_only_where_that_is_declared(
        self, broker: Broker, route: Route
    ) -> None:
        first = message(b"1", headers={IDEMPOTENCY_HEADER: "push-1"})
        await publish(broker, first)
        await publish(broker, msgspec.structs.replace(first, repeat=True))
        await publish(broker, message(b"2"))
        recognised = broker.capabilities.dedupe_window_seconds > 0
        expected = [1, 2] if recognised else [1, 1, 2]
        assert numbers(await drain(broker, route.queue, len(expected))) == expected

    async def test_equal_messages_that_are_no_repeats_all_arrive(self, broker: Broker, route: Route) -> None:
        """A replayed dead letter brings the key of the message that was refused."""
        same = message(b"1", headers={IDEMPOTENCY_HEADER: "push-1"})
        await publish(broker, same, same)
        await drain(broker, route.queue, 2)
        await publish(broker, same)
        assert numbers(await drain(broker, route.queue, 1)) == [1]

    async def test_an_interruption_is_counted_only_where_that_is_declared(
        self, broker: Broker, route: Route
    ) -> None:
        await publish(broker, message(b"1"))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            await collect(consumer, 1)
        (again,) = await drain(broker, route.queue, 1)
        counted = {0: Certainty.NO, 1: Certainty.YES}[int(str(again.headers.get("x-delivery-count", 0)))]
        assert broker.capabilities.counts_interruptions in {counted, Certainty.UNKNOWN}

    async def test_the_measures_of_a_queue_are_those_that_are_declared(
        self, broker: Broker, route: Route
    ) -> None:
        begun = time.monotonic()
        await publish(broker, *numbered(3))
        async with broker.consume(route.queue, prefetch=1) as consumer:
            await collect(consumer, 1)
            await wait_for_ready(broker, route.queue, 2)
            depth = await broker.depth(route.queue)
        assert depth is not None
        measures = {
            QueueMeasure.PENDING: depth.pending,
            QueueMeasure.OLDEST: depth.oldest_seconds,
            QueueMeasure.LEASE: depth.lease_seconds,
        }
        known = {measure: value for measure, value in measures.items() if value is not None}
        assert set(known) == set(broker.capabilities.queue_measures)
        assert known.get(QueueMeasure.PENDING, 1) == 1
        assert 0 <= known.get(QueueMeasure.OLDEST, 0) <= time.monotonic() - begun + 1
        assert 0 < known.get(QueueMeasure.LEASE, 30) <= 30
        empty = await broker.depth(route.dlq)
        assert empty is not None
        assert (empty.pending or 0, empty.oldest_seconds) == (0, None)


class TestBrowsing:
    async def test_there_is_no_depth_of_an_unknown_queue(self, broker: Broker, route: Route) -> None:
        assert await broker.depth("nobody.knows") is None
        await publish(broker, message(b"after"))
        await wait_for_ready(broker, route.queue, 1)

    async def test_depth_counts_what_waits_and_who_consumes(self, broker: Broker, route: Route) -> None:
        await publish(broker, *numbered(5))
        await wait_for_ready(broker, route.queue, 5)
        depth = await broker.depth(route.queue)
        assert depth is not None
        assert depth.consumers == 0
        async with broker.consume(route.queue, prefetch=2) as consumer:
            await collect(consumer, 2)
            await wait_for_ready(broker, route.queue, 3)
            depth = await broker.depth(route.queue)
            assert depth is not None
            assert depth.consumers == 1
        await wait_for_ready(broker, route.queue, 5)

    async def test_an_opened_broker_is_ready_and_healthy(self, broker: Broker, broker_url: str) -> None:
        await broker.ready(WAIT_SECONDS)
        assert broker.health.connected
        assert broker.health.blocked is None
        assert broker.url.partition(":")[0] == broker_url.partition(":")[0]
