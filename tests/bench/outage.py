"""Measures webhooks while the broker is stopped for a minute.

They come at a steady 200 a second. The figures are the answers, their latencies, and the published requests.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.broker import forwarder, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.broker.protocol import Broker
from solstice_common.topology import QueueType
from tests.bench import load
from tests.bench.processes import role
from tests.bench.routes import route_named
from tests.servers.rabbitmq_server import RabbitMQServer, Vhost

PER_SECOND: Final = 200.0
OUTAGE_SECONDS: Final = 60.0
GOAL_SECONDS: Final = 0.25
BEFORE_SECONDS: Final = 2.0
"""Seconds of traffic before the broker stops, and after it starts again."""
TIMEOUT_SECONDS: Final = 180.0
PREFETCH: Final = 256
UNCONFIRMED: Final = forwarder.GROUP
"""The most messages that may arrive twice.

They arrived without a confirm when the broker stopped.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Latencies in milliseconds, each from the moment its webhook was due."""

    sent: int
    down_seconds: float
    statuses: Mapping[int, int]
    """How many webhooks got each HTTP status."""
    published: int
    """Different requests that the broker got."""
    copies: int
    """Messages beyond the first of a request."""
    p50: float
    p99: float
    worst: float

    @property
    def summary(self) -> str:
        """The figures, for people."""
        answered = ", ".join(f"{count:,} x {status}" for status, count in self.statuses.items())
        return (
            f"broker stopped for {self.down_seconds:.0f} s under {PER_SECOND:.0f} webhooks/s: {answered}; "
            f"{self.published:,} of {self.sent:,} published, {self.copies} copies; answered in p50 {self.p50:.0f} ms, "
            f"p99 {self.p99:.0f} ms, worst {self.worst:.0f} ms (goal: p99 < {1000 * GOAL_SECONDS:.0f} ms)"
        )


async def measure(server: RabbitMQServer, *, outage_seconds: float = OUTAGE_SECONDS) -> Outage:
    """Stop the server and start it again on the same data."""
    count = round(PER_SECOND * (outage_seconds + 2 * BEFORE_SECONDS))
    requests = [load.request_bytes(load.push(number)[0]) for number in range(count)]
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as directory:

        async def stopped_meanwhile() -> None:
            await asyncio.sleep(BEFORE_SECONDS)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(outage_seconds)
            await asyncio.to_thread(server.start)

        inbox = Path(directory) / "inbox"
        async with role("receiver", url=vhost.url, name="outage", port=0, database=str(inbox)) as receiver:
            port = (await receiver.answer())["port"]
            async with asyncio.TaskGroup() as group:
                group.create_task(stopped_meanwhile(), name="outage")
                answering = group.create_task(
                    load.paced(port, requests, per_second=PER_SECOND), name="webhooks"
                )
            seen = await _arrived(vhost, count)
    answers = answering.result()
    waits = sorted(1000 * answer.latency_seconds for answer in answers)
    return Outage(
        sent=count,
        down_seconds=outage_seconds,
        statuses=Counter(answer.status for answer in answers),
        published=len(seen),
        copies=seen.total() - len(seen),
        p50=waits[len(waits) // 2],
        p99=waits[round(0.99 * (len(waits) - 1))],
        worst=waits[-1],
    )


async def _arrived(vhost: Vhost, count: int) -> Counter[str]:
    """How often each request arrived, once enough have and no more come."""
    route, seen = route_named("outage"), Counter[str]()
    async with open_broker(vhost.url, name="bench-outage") as broker, asyncio.timeout(TIMEOUT_SECONDS):
        await broker.ready(TIMEOUT_SECONDS)
        await broker.declare(route.topology(QueueType.QUORUM))
        async with broker.consume(route.queue, prefetch=PREFETCH) as consumer:
            while len(seen) < count or await _left(broker, route.queue):
                batch = await consumer.batch()
                seen.update(json.loads(delivery.body)["request_id"] for delivery in batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])
    return seen


async def _left(broker: Broker, queue: str) -> bool:
    depth = await broker.depth(queue)
    return depth is not None and depth.ready > 0
