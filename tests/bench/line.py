"""Measures the whole path of a webhook, from the signed 10 KB to dispatch.

It is kept, confirmed, consumed, stored, acked, and handed to dispatch. Ours is forge-integration as it is and the
orchestrator's intake; the yardstick keeps no inbox, awaits one publish in each request, and makes one transaction and
one ack for each message. Receiver, consumer, broker and load share the machine in both.
"""

import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import yardsticks
from tests.bench.pairs import Comparison, compare
from tests.bench.processes import role
from tests.bench.routes import route_named
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import RabbitMQServer

CONNECTIONS = 128


@dataclass(frozen=True, slots=True)
class Side:
    """The roles of one of the two ways."""

    receiver: str
    consumer: str


OURS = Side("receiver", "line_end")
NAIVE = Side("naive_app", "naive_consumer")


async def measure(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Webhooks per second, from the first request to the last hand-over."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as directory:

        async def drive(side: Side, name: str, *, exchange: str, queue: str) -> float:
            (port,) = free_ports(1)
            files = {what: str(Path(directory) / f"{name}.{what}") for what in ("inbox", "store")}
            inbox: dict[str, Any] = {"database": files["inbox"]} if side is OURS else {}
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(
                    role(side.consumer, url=vhost.url, name=queue, database=files["store"], count=count)
                )
                await consumer.heard()
                receiver = await stack.enter_async_context(
                    role(side.receiver, url=vhost.url, name=exchange, port=port, **inbox)
                )
                await receiver.heard()
                load = await stack.enter_async_context(
                    role("flood", port=port, count=count, connections=CONNECTIONS)
                )
                await load.heard()
                await load.go()
                sent, done = await load.heard(), await consumer.heard()
            if sent["refused"]:
                raise RuntimeError(f"{sent['refused']} webhooks of {count} were not accepted")
            latencies[side].append(statistics.quantiles(sent["latencies"], n=100)[98])
            return float(count / (done["done_at"] - sent["began_at"]))

        latencies: dict[Side, list[float]] = {OURS: [], NAIVE: []}

        async def ours(number: int) -> float:
            name = f"ours.{number}"
            return await drive(OURS, name, exchange=name, queue=name)

        async def naive(number: int) -> float:
            route = route_named(f"naive.{number}")
            await yardsticks.declare(vhost.url, route.exchange, route.queue, route.routing_key)
            return await drive(NAIVE, f"naive.{number}", exchange=route.exchange, queue=route.queue)

        return await compare(
            "whole line, against a publish awaited per request and a transaction per message",
            ours=ours,
            yardstick=naive,
            rounds=rounds,
            goal=2.5,
            note=lambda: (
                "p99 of the answer to a webhook under that load: "
                f"ours {1000 * statistics.median(latencies[OURS]):.0f} ms, "
                f"naive {1000 * statistics.median(latencies[NAIVE]):.0f} ms"
            ),
        )
