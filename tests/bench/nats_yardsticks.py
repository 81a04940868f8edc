"""The yardsticks on NATS: plain nats-py, as its documentation shows JetStream.

They are those of `yardsticks`, with the same arguments. The stream is durable as far as the server's settings go.
"""

import asyncio
import time
from collections.abc import Sequence

import nats
from nats.errors import TimeoutError as NatsTimeout

DURABLE = "solstice"
"""The consumer of a work queue, which has one."""


def _stream(queue: str) -> str:
    return queue.replace(".", "_")


async def declare(url: str, _exchange: str, queue: str, _routing_key: str) -> None:
    """A stream in files, and its consumer.

    To store in a stream that has one takes the server a fifth longer.
    """
    async with await nats.connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.add_stream(name=_stream(queue), subjects=[queue], retention="workqueue")
        await jetstream.add_consumer(_stream(queue), durable_name=DURABLE, ack_policy="explicit")


async def publish(url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int) -> float:
    """Publish all and wait for each PubAck, `in_flight` at a time; return the seconds.

    Each has an id by which the server recognises its repeat, as ours has: a publisher may have to repeat any message.
    """
    return await _publish(url, queue, bodies, in_flight, ids=True)


async def publish_without_ids(
    url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int
) -> float:
    """Publish all as `publish` does, and store a repeated message twice."""
    return await _publish(url, queue, bodies, in_flight, ids=False)


async def _publish(url: str, queue: str, bodies: Sequence[bytes], in_flight: int, *, ids: bool) -> float:
    async with await nats.connect(url) as client:
        jetstream, waiting = client.jetstream(timeout=60), iter(enumerate(bodies))

        async def worker() -> None:
            for number, body in waiting:
                await jetstream.publish(queue, body, headers={"Nats-Msg-Id": str(number)} if ids else None)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
        return time.perf_counter() - began


async def consume(url: str, queue: str, count: int, prefetch: int) -> None:
    """Fetch `count` messages, and ack each batch at once; nothing is stored.

    The server answers each ack.
    """
    async with await nats.connect(url) as client:
        subscription = await client.jetstream().pull_subscribe_bind(DURABLE, stream=_stream(queue))
        left = count
        while left:
            try:
                batch = await subscription.fetch(min(prefetch, left), timeout=1)
            except NatsTimeout:
                continue
            await asyncio.gather(*[message.ack_sync(timeout=60) for message in batch])
            left -= len(batch)
