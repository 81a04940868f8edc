"""Measures the whole path of a webhook, from the signed 10 KB to dispatch.

The webhook is stored, published, consumed, stored, acked, and handed to dispatch. Ours is forge-integration
as it is and the orchestrator's intake; the yardstick keeps no inbox, awaits one publish in each request, and
makes one transaction and one ack for each message. Receiver, consumer, broker and load share the machine in
both.
"""

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import yardsticks
from tests.bench.pairs import Comparison, compare
from tests.bench.processes import role
from tests.bench.routes import route_named
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import RabbitMQServer

CONNECTIONS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The roles of one of the two ways, with their arguments."""

    receiver: str
    consumer: str
    receiver_options: Mapping[str, Any] = field(default_factory=dict)
    consumer_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """How `count` webhooks went through the line."""

    per_second: float
    """From the first request to the last hand-over."""
    p99_seconds: float
    """Of the answers to the webhooks."""
    receiver_microseconds: float
    """The receiver's processor time for each webhook, like the next."""
    consumer_microseconds: float


NAIVE = Side(receiver="naive_app", consumer="naive_consumer")


async def send_through(
    side: Side, url: str, directory: Path, *, exchange: str, queue: str, count: int
) -> LineResult:
    """Send `count` webhooks through the line; RuntimeError when one is not accepted."""
    (port,) = free_ports(1)
    store = str(directory / f"{queue}.store")
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(
            role(side.consumer, url=url, name=queue, database=store, count=count, **side.consumer_options)
        )
        await consumer.answer()
        receiver = await stack.enter_async_context(
            role(side.receiver, url=url, name=exchange, port=port, **side.receiver_options)
        )
        await receiver.answer()
        load = await stack.enter_async_context(role("flood", port=port, count=count, connections=CONNECTIONS))
        await load.answer()
        before = receiver.processor_seconds, consumer.processor_seconds
        await load.go()
        sent, done = await load.answer(), await consumer.answer()
        receiver_seconds = receiver.processor_seconds - before[0]
    if sent["refused"]:
        raise RuntimeError(f"{sent['refused']} webhooks of {count} were not accepted")
    return LineResult(
        per_second=count / (done["done_at"] - sent["began_at"]),
        p99_seconds=statistics.quantiles(sent["latencies"], n=100)[98],
        receiver_microseconds=1e6 * receiver_seconds / count,
        consumer_microseconds=1e6 * (done["cpu_seconds"] - before[1]) / count,
    )


async def measure(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Webhooks per second, from the first request to the last hand-over."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as directory:
        latencies: dict[str, list[float]] = {"ours": [], "naive": []}

        async def ours(number: int) -> float:
            name = f"ours.{number}"
            side = our_side(Path(directory), name)
            result = await send_through(
                side, vhost.url, Path(directory), exchange=name, queue=name, count=count
            )
            latencies["ours"].append(result.p99_seconds)
            return result.per_second

        async def naive(number: int) -> float:
            route = route_named(f"naive.{number}")
            await yardsticks.declare(vhost.url, route.exchange, route.queue, route.routing_key)
            result = await send_through(
                NAIVE, vhost.url, Path(directory), exchange=route.exchange, queue=route.queue, count=count
            )
            latencies["naive"].append(result.p99_seconds)
            return result.per_second

        return await compare(
            "whole line, against a publish awaited per request and a transaction per message",
            ours=ours,
            yardstick=naive,
            rounds=rounds,
            goal=2.5,
            note=lambda: (
                "p99 of the answer to a webhook under that load: "
                f"ours {1000 * statistics.median(latencies['ours']):.0f} ms, "
                f"naive {1000 * statistics.median(latencies['naive']):.0f} ms"
            ),
        )


def our_side(directory: Path, name: str, *, signing_keys: str = "", verify_keys: str = "") -> Side:
    """Both services as they are; signing and verifying where keys are given."""
    return Side(
        receiver="receiver",
        consumer="line_end",
        receiver_options={"database": str(directory / f"{name}.inbox"), "signing_keys": signing_keys},
        consumer_options={"verify_keys": verify_keys},
    )
