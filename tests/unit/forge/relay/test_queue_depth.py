"""How many requests wait in the queue, and the assumption while the broker is unavailable."""

import re
from pathlib import Path
from typing import Literal

import pytest

from solstice_common.broker import Message
from solstice_common.broker.embedded.embedded_broker import EmbeddedBroker
from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import BrokerUnavailable
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, Route, jobs_route, split_jobs_route
from solstice_forge.metrics import Metrics
from solstice_forge.relay.queue_depth import PolledQueueDepth


def gauge(metrics: Metrics) -> float:
    text = metrics.render(0, BrokerHealth(connected=True)).decode()
    (value,) = re.findall(r"^solstice_forge_queue_ready (\S+)$", text, re.MULTILINE)
    return float(value)


async def test_requests_in_the_queue_are_counted_until_the_broker_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    async with EmbeddedBroker.open(f"sqlite:///{tmp_path / 'broker.db'}", name="here") as broker:
        queued = PolledQueueDepth(broker, BrokerSettings(), metrics)
        await queued.refresh()
        assert queued.count == 0
        jobs = jobs_route(BrokerSettings())
        await broker.declare(jobs.topology(QueueType.QUORUM))
        await broker.publish([request(jobs)] * 3)
        await queued.refresh()
        assert (queued.count, gauge(metrics)) == (3, 3.0)

        async def away(queue: str) -> None:
            raise BrokerUnavailable("amqp://away", f"cannot ask for {queue}")

        monkeypatch.setattr(broker, "depth", away)
        await queued.refresh()
    assert (queued.count, gauge(metrics)) == (0, 0.0)


def request(route: Route) -> Message:
    return Message(exchange=route.exchange, routing_key=route.routing_key, body=b"x", type="t")


@pytest.mark.parametrize("priorities", ["one", "split"])
async def test_requests_of_all_classes_are_counted_and_unread_ones_are_reported(
    priorities: Literal["one", "split"], tmp_path: Path
) -> None:
    settings, clock = BrokerSettings(amqp_priorities=priorities), [1000.0]
    split = split_jobs_route(settings)
    critical = split.of(Priority.CRITICAL)
    async with EmbeddedBroker.open(f"sqlite:///{tmp_path / 'broker.db'}", name="here") as broker:
        await broker.declare(split.topology(QueueType.QUORUM))
        await broker.publish([request(split.of(each)) for each in Priority])
        queued = PolledQueueDepth(broker, settings, Metrics(), clock=lambda: clock[0])
        await queued.refresh()
        assert (queued.count, queued.notices) == (4, {})
        clock[0] += 30
        async with broker.consume(critical.queue, prefetch=1):
            await queued.refresh()
            (notice,) = queued.notices.values()
        assert "solstice.jobs.v1.high (1), solstice.jobs.v1.low (1)" in notice
        assert "critical" not in notice
        assert "AMQP_PRIORITIES=split" in notice
        await queued.refresh()
        assert "critical" not in "".join(queued.notices.values())


async def test_with_one_queue_those_of_classes_are_queues_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ logs an error for each queue that does not exist."""
    queues: list[str] = []
    async with EmbeddedBroker.open(f"sqlite:///{tmp_path / 'broker.db'}", name="here") as broker:

        async def depth(queue: str) -> None:
            queues.append(queue)

        monkeypatch.setattr(broker, "depth", depth)
        queued = PolledQueueDepth(broker, BrokerSettings(), Metrics())
        for _ in range(3):
            await queued.refresh()
    assert sorted(queues) == [
        *["solstice.jobs.v1"] * 3,
        *[f"solstice.jobs.v1.{each}" for each in ("critical", "high", "low")],
    ]
