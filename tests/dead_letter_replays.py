"""Dead letters of requests, what holds or replays them, and the intake that stores them."""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from solstice_common.broker import Broker, DeadLetter, Message, open_dead_letter_queues
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.store import JobStore
from tests.builders import job_request
from tests.servers.service_process import base_environment
from tests.traffic import wait_for_ready

JOBS: Final = jobs_route(BrokerSettings())
TOPOLOGY: Final = full_topology(BrokerSettings())
PUBLISHED_AT_ONCE: Final = 500


def environment(url: str) -> dict[str, str]:
    return {**base_environment(), "AMQP_URL": url, "NO_COLOR": "1", "COLUMNS": "200"}


def refused(number: int, *, reason: str = "internal_error", **changes: Any) -> Message:
    """A dead letter whose request can be read."""
    request = job_request(request_id=f"00000000-0000-4000-8000-{number:012}", **changes)
    return Message(
        exchange=JOBS.dlx,
        routing_key=JOBS.routing_key,
        body=request.encode(),
        type="jobrequest.v1",
        correlation_id=request.request_id,
        headers={
            "x-solstice-reason": reason,
            "x-solstice-detail": "KeyError: 'x'",
            "x-solstice-refused-at": f"2026-03-01T12:{number // 60 % 60:02}:{number % 60:02}.000Z",
            "x-solstice-idempotency-key": request.request_id,
        },
        priority=4,
    )


async def fill(broker: Broker, *messages: Message) -> None:
    """Declare the topology and publish dead letters to it."""
    await broker.ready(30)
    await broker.declare(TOPOLOGY)
    for start_at in range(0, len(messages), PUBLISHED_AT_ONCE):
        outcomes = await broker.publish(messages[start_at : start_at + PUBLISHED_AT_ONCE])
        assert all(each.confirmed for each in outcomes)
    await wait_for_ready(broker, JOBS.dlq, len(messages))


@asynccontextmanager
async def running_intake(broker: Broker, store: JobStore, *, prefetch: int = 64) -> AsyncIterator[None]:
    """An orchestrator's intake, which stores each request that is replayed."""
    stage = Intake(broker=broker, store=store, metrics=Metrics(), rng=random.Random(1))
    running = asyncio.create_task(stage.run(JOBS, TOPOLOGY, prefetch=prefetch))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def start_replay(url: str, *words: str, stderr: int = PIPE) -> Process:
    """Start `solstice dlq replay --watch 0 WORDS`."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "solstice_cli", "dlq", "replay", "--watch", "0", *words),
        env=environment(url), stdout=PIPE, stderr=stderr,
    )  # fmt: skip


@asynccontextmanager
async def another_reader(url: str) -> AsyncIterator[None]:
    """Hold all dead letters on another connection until the end."""
    begun, done = asyncio.Event(), asyncio.Event()

    async def hold(_: Sequence[DeadLetter]) -> Collection[str]:
        begun.set()
        await done.wait()
        return ()

    async with open_dead_letter_queues(url, name="other") as others:
        queue = others.queue(JOBS.dlq)
        taking = asyncio.create_task(queue.take(hold, PUBLISHED_AT_ONCE))
        async with asyncio.timeout(30):
            await begun.wait()
        yield
        done.set()
        await taking
