"""Measures our intake against the plain client.

Ours consumes, validates, stores durably and acks; the plain client consumes and acks each message, and keeps nothing.
"""

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Final

from solstice_common.broker import open_broker
from solstice_common.topology import QueueType
from tests.bench import redis_yardsticks
from tests.bench.pairs import Comparison, compare
from tests.bench.processes import role
from tests.bench.publishing import identified, message, requests
from tests.bench.roles import PREFETCH
from tests.bench.routes import route_named
from tests.bench.servers import BenchServer, goal_of, plain_client

REST_SECONDS: Final = 3.0
"""From the last confirm to the consumer's start: RabbitMQ goes on writing for a while."""


async def measure(server: BenchServer, *, count: int, rounds: int) -> Comparison:
    """Messages settled per second, from the first delivery's way to the last ack."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as directory:
        in_batches: list[float] = []

        async def fill(name: str) -> None:
            route = route_named(name)
            async with open_broker(vhost.url, name="bench-fill") as broker:
                await broker.ready(10)
                await broker.declare(route.topology(QueueType.QUORUM))
                await broker.publish([message(route, *row) for row in identified(requests(count, name))])
            await asyncio.sleep(REST_SECONDS)

        async def ours(number: int) -> float:
            await fill(f"ours.{number}")
            database = str(Path(directory) / f"{number}.sqlite")
            async with role(
                "consumer", url=vhost.url, name=f"ours.{number}", database=database, count=count
            ) as it:
                await it.answer()
                return await it.rate(count)

        async def plain(number: int) -> float:
            await fill(f"plain.{number}")
            queue = route_named(f"plain.{number}").queue
            async with role("plain_consumer", url=vhost.url, name=queue, count=count) as it:
                await it.answer()
                rate = await it.rate(count)
            if plain_client(vhost.url) is redis_yardsticks:
                await fill(f"batches.{number}")
                queue = route_named(f"batches.{number}").queue
                seconds = await redis_yardsticks.consume_in_batches(vhost.url, queue, count, PREFETCH)
                in_batches.append(count / seconds)
            return rate

        def note() -> str:
            if not in_batches:
                return ""
            rate = statistics.median(in_batches)
            return f"plain redis-py that acks {PREFETCH} in one pipeline, and stores nothing: {rate:,.0f} a second"

        return await compare(
            "consume + validate + store + ack, against consume + ack",
            ours=ours,
            yardstick=plain,
            rounds=rounds,
            goal=goal_of(vhost.url),
            note=note,
        )
