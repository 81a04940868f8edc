"""Measures confirmed publishing against the plain client.

Both have the same number of publishes under way, and what they publish ready.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Final

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.messages import JobRequestV1, Source, derive_request_id
from solstice_common.topology import QueueType, Route
from tests.bench import nats_yardsticks, redis_yardsticks
from tests.bench.pairs import Comparison, compare
from tests.bench.routes import route_named
from tests.bench.servers import BenchServer, goal_of, plain_client

Publishing = Callable[[str, str, str, Sequence[bytes], int], Awaitable[float]]

IN_FLIGHT = 200
OTHERS: Final[Mapping[ModuleType, Mapping[str, Publishing]]] = {
    redis_yardsticks: {
        f"redis-py with {IN_FLIGHT} bodies in a pipeline that recognises repeats": redis_yardsticks.publish_once,
        f"redis-py with {IN_FLIGHT} connections": redis_yardsticks.publish_one_by_one,
    },
    nats_yardsticks: {"nats-py that recognises no repeat": nats_yardsticks.publish_without_ids},
}
"""Other ways to publish, by what they do, measured beside the yardstick of a client."""


def requests(count: int, seed: str) -> list[bytes]:
    """Canonical job requests, all different, of about 500 bytes."""
    return [
        JobRequestV1(
            schema_version="jobrequest.v1",
            request_id=derive_request_id("bench", seed, str(number)),
            source=Source.FORGEJO,
            repo_url="https://forge.example/river/otter.git",
            commit_sha=f"{number:040x}",
            submitted_at="2026-01-31T12:00:00.000Z",
            ref="refs/heads/main",
            repo_full_name="river/otter",
            sender="marten",
            idempotency_key=f"forgejo:river/otter:push:refs/heads/main:{seed}:{number}",
        ).encode()
        for number in range(count)
    ]


def identified(bodies: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """The bodies with their request ids, which the relay has beside each: it decodes none."""
    return [(json.loads(body)["request_id"], body) for body in bodies]


def message(route: Route, request_id: str, body: bytes) -> Message:
    """A job request as the relay publishes it."""
    return Message(
        exchange=route.exchange,
        routing_key=route.routing_key,
        body=body,
        type="jobrequest.v1",
        correlation_id=request_id,
        headers={"x-solstice-idempotency-key": request_id, "x-solstice-attempt": 1},
    )


async def publish_by_broker(broker: Broker, messages: Sequence[Message], in_flight: int) -> None:
    """Run as many tasks as may be in flight; each publishes one by one.

    That is exactly the shape of the yardstick.
    """
    waiting = iter(messages)

    async def worker() -> None:
        for each in waiting:
            (outcome,) = await broker.publish([each])
            if not outcome.confirmed:
                raise RuntimeError(f"not confirmed: {outcome}")

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())


async def measure(server: BenchServer, *, count: int, rounds: int) -> Comparison:
    """Messages confirmed per second."""
    with server.vhost() as vhost:
        bodies = requests(count, "publishing")
        outbox = identified(bodies)
        yardsticks = plain_client(vhost.url)
        by_us: list[float] = []
        others: dict[str, list[float]] = {}

        async def ours(number: int) -> float:
            route = route_named(f"ours.{number}")
            async with open_broker(vhost.url, name="bench") as broker:
                await broker.ready(10)
                await broker.declare(route.topology(QueueType.QUORUM))
                messages = [message(route, *row) for row in outbox]
                began = time.perf_counter()
                await publish_by_broker(broker, messages, IN_FLIGHT)
                by_us.append(count / (time.perf_counter() - began))
                return by_us[-1]

        async def plain(number: int) -> float:
            name = f"plain.{number}"
            await yardsticks.declare(vhost.url, name, name, "jobrequest.v1")
            rate: float = count / await yardsticks.publish(
                vhost.url, name, "jobrequest.v1", bodies, IN_FLIGHT
            )
            for how, publish in OTHERS.get(yardsticks, {}).items():
                await yardsticks.declare(vhost.url, name, f"{name}.{publish.__name__}", "jobrequest.v1")
                seconds = await publish(vhost.url, f"{name}.{publish.__name__}", "", bodies, IN_FLIGHT)
                others.setdefault(how, []).append(count / seconds)
            return rate

        def note() -> str:
            return "; ".join(
                f"{how}: {statistics.median(rates):,.0f} a second, ours "
                f"{statistics.median(ours / plain for ours, plain in zip(by_us, rates, strict=True)):.2f}x"
                for how, rates in others.items()
            )

        return await compare(
            f"publish with confirms, {IN_FLIGHT} in flight, 1 message a call",
            ours=ours,
            yardstick=plain,
            rounds=rounds,
            goal=goal_of(vhost.url),
            note=note,
        )
