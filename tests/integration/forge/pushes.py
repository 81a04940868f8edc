"""Signed pushes to send, and the requests that arrive at the other end."""

import asyncio

from solstice_common.broker import Broker
from solstice_common.broker.delivery import Ack
from solstice_common.messages import JobRequestV1, Source
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, jobs_route
from solstice_forge.forges.samples import push_body, sign

SECRET = "maple-lantern-42"
REPO_URL = "https://forge.example/tide-club/almanac.git"


def push(number: int, *, delivery_id: str | None = None) -> tuple[bytes, dict[str, str]]:
    """Body and headers of Forgejo's push of the `number`th commit."""
    body = push_body(
        Source.FORGEJO,
        repo_url=REPO_URL,
        repo_full_name="tide-club/almanac",
        ref="refs/heads/main",
        sha=f"{number:040x}",
    )
    return body, signed(body, delivery_id=delivery_id or f"delivery-{number}")


def signed(body: bytes, *, delivery_id: str = "d-1") -> dict[str, str]:
    """Headers with which Forgejo would send any body as a push."""
    return sign(Source.FORGEJO, SECRET, event="push", body=body, delivery_id=delivery_id, now=0)


async def received(
    broker: Broker, settings: BrokerSettings, count: int, *, distinct: bool = False
) -> list[JobRequestV1]:
    """The next `count` requests of the queue in order, acked; `distinct` skips copies."""
    route = jobs_route(settings)
    requests: list[JobRequestV1] = []
    async with asyncio.timeout(60):
        await broker.ready(60)
        await broker.declare(route.topology(QueueType(settings.amqp_queue_type)))
        async with broker.consume(route.queue, prefetch=count) as consumer:
            while len({one.request_id for one in requests} if distinct else requests) < count:
                batch = await consumer.batch()
                requests += [JobRequestV1.decode(one.body) for one in batch]
                await consumer.settle([(one, Ack()) for one in batch])
    return requests


def number_of(request: JobRequestV1) -> int:
    return int(request.commit_sha, 16)
