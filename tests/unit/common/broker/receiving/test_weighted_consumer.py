"""What the weighted consumer does by itself; `tests/contract/test_weighted_consumer.py` has real brokers."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from solstice_common.broker.delivery import Ack, Verdict
from solstice_common.broker.protocol import Consumer, Delivered, Delivery
from solstice_common.broker.receiving.weighted_consumer import consume_weighted
from solstice_common.errors import TopologyMismatch
from tests.polling import wait_until

WEIGHTS = {"urgent": 2, "slow": 1}


class ScriptedQueue:
    """One queue's consumer: gives the batches that are put in, and records verdicts."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[str] | Exception] = asyncio.Queue()
        self.settled: list[str] = []
        self.subscribed = True
        self.is_left = False

    async def batch(self) -> Sequence[Delivery]:
        bodies = await self.batches.get()
        if isinstance(bodies, Exception):
            raise bodies
        return [Delivered(body=each.encode(), tag=each) for each in bodies]

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        self.settled += [delivery.body.decode() for delivery, _ in verdicts]


class ScriptedBroker:
    def __init__(self) -> None:
        self.queues = {each: ScriptedQueue() for each in WEIGHTS}

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[ScriptedQueue]:
        self.prefetch = prefetch
        try:
            yield self.queues[queue]
        finally:
            self.queues[queue].is_left = True

    def deliver(self, queue: str, *bodies: str) -> Self:
        self.queues[queue].batches.put_nowait(list(bodies))
        return self

    async def read(self) -> None:
        """Wait until all batches were read."""
        await wait_until(lambda: all(each.batches.empty() for each in self.queues.values()))
        await asyncio.sleep(0)


def consuming(broker: ScriptedBroker, prefetch: int = 4) -> Any:
    return consume_weighted(broker, WEIGHTS, prefetch=prefetch)  # type: ignore[arg-type]  # nothing is published


async def bodies(consumer: Consumer) -> tuple[list[str], Sequence[Delivery]]:
    async with asyncio.timeout(10):
        batch = await consumer.batch()
    return [delivery.body.decode() for delivery in batch], batch


async def test_batches_are_in_weighted_order_and_each_queue_settles_its_own() -> None:
    broker = ScriptedBroker().deliver("slow", "s1", "s2", "s3").deliver("urgent", "u1", "u2", "u3")
    async with consuming(broker) as consumer:
        await broker.read()
        found, batch = await bodies(consumer)
        assert found == ["u1", "s1", "u2", "u3"]
        await consumer.settle([(each, Ack()) for each in batch])
        assert broker.queues["urgent"].settled == ["u1", "u2", "u3"]
        assert broker.queues["slow"].settled == ["s1"]
        assert (await bodies(consumer))[0] == ["s2", "s3"]
    assert broker.prefetch == 4
    assert all(each.is_left for each in broker.queues.values())


async def test_no_more_than_the_prefetch_is_given_out_at_once() -> None:
    broker = ScriptedBroker().deliver("slow", *"abcd").deliver("urgent", *"ABCD")
    async with consuming(broker) as consumer:
        await broker.read()
        _, batch = await bodies(consumer)
        assert len(batch) == 4
        waiting = asyncio.create_task(consumer.batch())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await consumer.settle([(batch[0], Ack())])
        async with asyncio.timeout(10):
            assert len(await waiting) == 1


async def test_a_message_that_arrives_wakes_who_waits_and_a_cancelled_wait_loses_none() -> None:
    broker = ScriptedBroker()
    async with consuming(broker) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await consumer.batch()
        broker.deliver("slow", "s1")
        assert (await bodies(consumer))[0] == ["s1"]


async def test_what_lost_connections_left_at_hand_is_bounded() -> None:
    """A store that is away must not let each reconnect add another batch."""
    broker = ScriptedBroker()
    async with consuming(broker) as consumer:
        for _ in range(10):
            broker.deliver("slow", *"abcd")
        await asyncio.sleep(0.02)
        assert broker.queues["slow"].batches.qsize() == 9
        _, batch = await bodies(consumer)
        await consumer.settle([(each, Ack()) for each in batch])
        await wait_until(lambda: broker.queues["slow"].batches.qsize() == 8)


async def test_it_is_subscribed_when_all_its_queues_are() -> None:
    broker = ScriptedBroker()
    async with consuming(broker) as consumer:
        assert consumer.subscribed
        broker.queues["slow"].subscribed = False
        assert not consumer.subscribed


async def test_a_verdict_counts_once() -> None:
    broker = ScriptedBroker().deliver("slow", "s1")
    async with consuming(broker) as consumer:
        _, (delivery,) = await bodies(consumer)
        for _ in range(2):
            await consumer.settle([(delivery, Ack())])
        await consumer.settle([(Delivered(body=b"of another", tag=1), Ack())])
    assert broker.queues["slow"].settled == ["s1"]


async def test_a_queue_of_other_arguments_is_told_to_who_waits() -> None:
    broker = ScriptedBroker().deliver("slow", "s1")
    broker.queues["urgent"].batches.put_nowait(
        TopologyMismatch("queue", "urgent", {}, "x-queue-type=classic")
    )
    async with consuming(broker) as consumer:
        assert (await bodies(consumer))[0] == ["s1"]
        with pytest.raises(TopologyMismatch, match="urgent"):
            await consumer.batch()


async def test_one_queue_alone_is_consumed_as_the_broker_does_it() -> None:
    broker = ScriptedBroker()
    async with consume_weighted(broker, {"slow": 1}, prefetch=4) as consumer:  # type: ignore[arg-type]  # as above
        assert consumer is broker.queues["slow"]
