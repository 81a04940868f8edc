"""The yardsticks on Redis: plain redis-py, as its documentation shows streams.

They are those of `yardsticks`, with the same arguments. Each stores durably, as far as the server's settings go.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

GROUP = "plain"
STORE_ONCE = """
if redis.call('SET', KEYS[2], '', 'NX', 'PX', 600000) then redis.call('XADD', KEYS[1], '*', 'body', ARGV[1]) end
"""


async def declare(url: str, _exchange: str, queue: str, _routing_key: str) -> None:
    """A stream with a consumer group."""
    async with Redis.from_url(url, protocol=2) as client:
        await client.xgroup_create(queue, GROUP, id="0", mkstream=True)


async def publish(url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int) -> float:
    """Add all, `in_flight` in each pipeline; return the seconds. The fastest way that redis-py knows."""
    async with Redis.from_url(url, protocol=2) as client:
        began = time.perf_counter()
        for first in range(0, len(bodies), in_flight):
            async with client.pipeline(transaction=False) as pipeline:
                for body in bodies[first : first + in_flight]:
                    pipeline.xadd(queue, {"body": body})
                await pipeline.execute()
        return time.perf_counter() - began


async def publish_once(
    url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int
) -> float:
    """Add all as `publish` does, none twice within ten minutes; return the seconds.

    That is what a publisher promises who may have to repeat a message: the key and the message are stored together.
    """
    async with Redis.from_url(url, protocol=2) as client:
        store_once = client.register_script(STORE_ONCE)
        began = time.perf_counter()
        for first in range(0, len(bodies), in_flight):
            async with client.pipeline(transaction=False) as pipeline:
                for number, body in enumerate(bodies[first : first + in_flight], start=first):
                    await store_once(keys=[queue, f"{queue}:once:{number}"], args=[body], client=pipeline)
                await pipeline.execute()
        return time.perf_counter() - began


async def publish_one_by_one(
    url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int
) -> float:
    """Add all, `in_flight` at a time, each on a connection; return the seconds."""
    pool = BlockingConnectionPool.from_url(url, max_connections=in_flight, protocol=2)
    async with Redis.from_pool(pool) as client:
        waiting = iter(bodies)

        async def worker() -> None:
            for body in waiting:
                await client.xadd(queue, {"body": body})

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
        return time.perf_counter() - began


async def consume(url: str, queue: str, count: int, prefetch: int) -> None:
    """Read `count` messages, and ack and delete each by itself; nothing is stored.

    All messages of a read are acked at once, each on a connection: so a service with a task per message does it.
    """
    pool = BlockingConnectionPool.from_url(
        url, max_connections=prefetch, protocol=2, socket_timeout=None, timeout=None
    )
    async with Redis.from_pool(pool) as client:
        await client.xgroup_create(queue, GROUP, id="0", mkstream=True)

        async def settle(entry_id: bytes) -> None:
            await client.xack(queue, GROUP, entry_id)
            await client.xdel(queue, entry_id)

        left = count
        while left:
            ids = await _read(client, queue, prefetch)
            await asyncio.gather(*map(settle, ids))
            left -= len(ids)


async def consume_in_batches(url: str, queue: str, count: int, prefetch: int) -> float:
    """Read `count` messages, and ack and delete each batch in one pipeline; return the seconds.

    The fastest way that redis-py knows; nothing is stored.
    """
    async with Redis.from_url(url, protocol=2, socket_timeout=None) as client:
        await client.xgroup_create(queue, GROUP, id="0", mkstream=True)
        began, left = time.perf_counter(), count
        while left:
            ids = await _read(client, queue, prefetch)
            async with client.pipeline(transaction=False) as pipeline:
                pipeline.xack(queue, GROUP, *ids)
                pipeline.xdel(queue, *ids)
                await pipeline.execute()
            left -= len(ids)
        return time.perf_counter() - began


async def _read(client: "Redis", queue: str, prefetch: int) -> list[Any]:
    """The ids of the next messages."""
    found: Any = []
    while not found:
        found = await client.xreadgroup(GROUP, "one", {queue: ">"}, count=prefetch, block=1000)
    return [entry_id for _, entries in found for entry_id, _ in entries]
