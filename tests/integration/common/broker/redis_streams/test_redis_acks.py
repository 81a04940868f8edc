"""How acks reach Redis: with the reader's next call, or at once while it waits."""

import asyncio

import pytest

from solstice_common.broker import Broker, Consumer, Delivery
from solstice_common.broker.delivery import Ack
from solstice_common.broker.redis_streams.redis_consumer import WAIT_SECONDS
from tests.servers.proxy import fault_proxy
from tests.servers.redis_server import RedisServer
from tests.traffic import ROUTE, connected, numbers, order, take

EVERY_VERSION = True

PREFETCH = 8
COUNT = 400


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


async def publish(broker: Broker, count: int) -> None:
    outcomes = await broker.publish([order(number) for number in range(count)])
    assert all(outcome.confirmed for outcome in outcomes)


async def ack(consumer: Consumer, deliveries: list[Delivery]) -> None:
    await consumer.settle([(delivery, Ack()) for delivery in deliveries])


async def test_single_acks_in_any_order_keep_the_reader_within_its_prefetch(
    url: str, redis_server: RedisServer
) -> None:
    seen: list[int] = []
    most = 0
    async with connected(url) as broker:
        await publish(broker, COUNT)
        async with broker.consume(ROUTE.queue, prefetch=PREFETCH) as consumer, asyncio.TaskGroup() as tasks:
            while len(seen) < COUNT:
                batch = list(await consumer.batch())
                seen += numbers(batch)
                for delivery in reversed(batch):
                    tasks.create_task(ack(consumer, [delivery]))
                with redis_server.client() as plain:
                    most = max(most, plain.xpending(ROUTE.queue, "solstice")["pending"])
        with redis_server.client() as plain:
            assert plain.xlen(ROUTE.queue) == 0
    assert sorted(seen) == list(range(COUNT))
    assert most <= PREFETCH


async def test_an_ack_does_not_wait_for_the_next_message(url: str) -> None:
    async with connected(url) as broker, broker.consume(ROUTE.queue, prefetch=PREFETCH) as consumer:
        for number in range(5):
            await broker.publish([order(number)])
            batch = await take(consumer, 1)
            # The reader finds nothing more, and waits.
            await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            await ack(consumer, batch)
            assert asyncio.get_running_loop().time() - began < WAIT_SECONDS * 0.8


async def test_acks_that_are_under_way_when_their_consumer_leaves_are_carried_out(url: str) -> None:
    async with connected(url) as broker:
        await publish(broker, COUNT)
        acked: set[int] = set()
        while len(acked) < COUNT:
            async with broker.consume(ROUTE.queue, prefetch=PREFETCH) as consumer:
                batch = list(await consumer.batch())
                settling = asyncio.create_task(ack(consumer, batch))
                await asyncio.sleep(0)
            await asyncio.wait_for(settling, 10)
            assert acked.isdisjoint(numbers(batch)), "what was acked before leaving came again"
            acked.update(numbers(batch))


async def test_an_ack_whose_link_is_lost_returns_and_its_message_comes_again(url: str) -> None:
    async with fault_proxy(url) as proxy, connected(proxy.url(url)) as broker:
        await publish(broker, 2)
        async with broker.consume(ROUTE.queue, prefetch=2) as consumer:
            deliveries = await take(consumer, 2)
            proxy.freeze()
            settling = asyncio.create_task(ack(consumer, deliveries))
            await asyncio.sleep(0.2)
            assert not settling.done(), "the server has not heard of it"
            proxy.drop()
            proxy.pass_through()
            await asyncio.wait_for(settling, 10)
            again = await take(consumer, 2)
            assert numbers(again) == [0, 1]
            assert all(delivery.redelivered for delivery in again)
