"""Several queues of every broker are consumed as one, in weighted order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise

import pytest

from solstice_common.broker import Broker, Consumer, Delivery, Message, PublishStatus
from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict
from solstice_common.broker.receiving.weighted_consumer import consume_weighted
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, Route, split_jobs_route
from tests.traffic import wait_for_ready

OpenBroker = Callable[[str], AbstractAsyncContextManager[Broker]]

CRITICAL, LOW = Priority.CRITICAL, Priority.LOW
WAIT_SECONDS = 60


@pytest.fixture
def split() -> Route:
    return split_jobs_route(BrokerSettings.model_construct())


@pytest.fixture
async def consumed(another: OpenBroker, split: Route) -> AsyncIterator[Broker]:
    async with another("weighted") as opened:
        await opened.ready(30)
        await opened.declare(split.topology(QueueType.QUORUM))
        yield opened


async def publish(broker: Broker, split: Route, priority: Priority, count: int, *, start: int = 0) -> None:
    route = split.of(priority)
    outcomes = await broker.publish(
        [
            Message(
                exchange=route.exchange,
                routing_key=route.routing_key,
                body=f"{priority} {number}".encode(),
                type="jobrequest.v1",
            )
            for number in range(start, start + count)
        ]
    )
    assert {outcome.status for outcome in outcomes} == {PublishStatus.CONFIRMED}


async def next_deliveries(consumer: Consumer, count: int, verdict: Verdict | None = None) -> list[Delivery]:
    """The next deliveries, at least `count`, in order."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(deliveries) < count:
            batch = await consumer.batch()
            deliveries += batch
            if verdict is not None:
                await consumer.settle([(each, verdict) for each in batch])
    return deliveries


def words(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.body.decode() for delivery in deliveries]


async def test_critical_message_is_among_the_next_beside_a_full_queue_of_low_ones(
    consumed: Broker, split: Route
) -> None:
    await publish(consumed, split, LOW, 300)
    async with consume_weighted(consumed, split.weights, prefetch=8) as consumer:
        before = await next_deliveries(consumer, 8)
        await publish(consumed, split, CRITICAL, 1)
        await wait_for_ready(consumed, split.of(CRITICAL).queue, 0)
        await consumer.settle([(each, Ack()) for each in before])
        order = words(await next_deliveries(consumer, 293, Ack()))
    # The first of the next batch, or of the one after it, should it have been on its way still.
    assert order.index("critical 0") <= 8
    assert order[-1] == "low 299"


async def test_low_ones_move_under_a_stream_of_critical_ones(consumed: Broker, split: Route) -> None:
    """At most nine critical ones come between two low ones."""
    await publish(consumed, split, LOW, 12)
    await publish(consumed, split, CRITICAL, 300)
    async with consume_weighted(consumed, split.weights, prefetch=16) as consumer:
        # All of them are at hand, or about to be.
        await wait_for_ready(consumed, split.of(LOW).queue, 0)
        order = words(await next_deliveries(consumer, 312, Ack()))
    places = [place for place, word in enumerate(order) if word.startswith("low")]
    assert len(places) == 12
    assert max(after - before for before, after in pairwise(places)) <= 10
    assert places[-1] < 200


async def test_each_arrives_once_and_each_queue_keeps_its_order(consumed: Broker, split: Route) -> None:
    for priority in Priority:
        await publish(consumed, split, priority, 50)
    async with consume_weighted(consumed, split.weights, prefetch=8) as consumer:
        order = words(await next_deliveries(consumer, 200, Ack()))
    for priority in Priority:
        of_class = [word for word in order if word.startswith(priority)]
        assert of_class == [f"{priority} {number}" for number in range(50)]
    for priority in Priority:
        await wait_for_ready(consumed, split.of(priority).queue, 0)


async def test_leaving_returns_what_is_not_settled_to_its_queue(consumed: Broker, split: Route) -> None:
    for priority in Priority:
        await publish(consumed, split, priority, 10)
    async with consume_weighted(consumed, split.weights, prefetch=4) as consumer:
        assert len(await next_deliveries(consumer, 4)) == 4
    for priority in Priority:
        await wait_for_ready(consumed, split.of(priority).queue, 10)


async def test_no_more_than_the_prefetch_is_under_way_at_once(consumed: Broker, split: Route) -> None:
    for priority in Priority:
        await publish(consumed, split, priority, 20)
    async with consume_weighted(consumed, split.weights, prefetch=4) as consumer:
        under_way = await next_deliveries(consumer, 4)
        assert len(under_way) == 4
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await consumer.batch()
        await consumer.settle([(each, Ack()) for each in under_way])
        await next_deliveries(consumer, 76, Ack())


async def test_refused_message_goes_to_the_dead_letters_of_its_class(consumed: Broker, split: Route) -> None:
    for priority in Priority:
        await publish(consumed, split, priority, 1)
    async with consume_weighted(consumed, split.weights, prefetch=8) as consumer:
        await next_deliveries(consumer, 4, Refuse(reason="not_json", detail="of a test"))
    for priority in Priority:
        route = split.of(priority)
        await wait_for_ready(consumed, route.dlq, 1)
        async with consumed.consume(route.dlq, prefetch=1) as dead:
            (dead_letter,) = await next_deliveries(dead, 1, Ack())
        assert dead_letter.body.decode() == f"{priority} 0"
        assert dead_letter.headers["x-solstice-queue"] == route.queue


async def test_retried_message_comes_again(consumed: Broker, split: Route) -> None:
    await publish(consumed, split, CRITICAL, 1)
    async with consume_weighted(consumed, split.weights, prefetch=8) as consumer:
        await next_deliveries(consumer, 1, Retry(reason="store_away"))
        (again,) = await next_deliveries(consumer, 1, Ack())
    assert again.body == b"critical 0"
    assert again.redelivered


async def test_publisher_that_knows_no_classes_reaches_the_default_one(
    consumed: Broker, split: Route
) -> None:
    one = replace(split, classes={})
    await consumed.declare(one.topology(QueueType.QUORUM))
    for priority in Priority:
        await publish(consumed, one, priority, 1)
    async with consume_weighted(consumed, split.weights, prefetch=8) as consumer:
        assert words(await next_deliveries(consumer, 4, Ack())) == [f"{priority} 0" for priority in Priority]
