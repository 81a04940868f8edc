"""How many requests wait in the queue, and the assumption while the broker is away."""

import re
from pathlib import Path

import pytest

from solstice_common.broker import Message
from solstice_common.broker.embedded.embedded_broker import EmbeddedBroker
from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.metrics import Metrics
from solstice_forge.relay.queue_depth import QueueDepth


def gauge(metrics: Metrics) -> float:
    text = metrics.render(0, BrokerHealth(connected=True)).decode()
    (value,) = re.findall(r"^solstice_forge_queue_ready (\S+)$", text, re.MULTILINE)
    return float(value)


async def test_requests_in_the_queue_are_counted_until_the_broker_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    async with EmbeddedBroker.open(f"sqlite:///{tmp_path / 'broker.db'}", name="here") as broker:
        queued = QueueDepth(broker, STATUSES.queue, metrics)
        await queued.look()
        assert queued.count == 0
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        message = Message(exchange=STATUSES.exchange, routing_key=STATUSES.routing_key, body=b"x", type="t")
        await broker.publish([message] * 3)
        await queued.look()
        assert (queued.count, gauge(metrics)) == (3, 3.0)

        async def away(queue: str) -> None:
            raise BrokerUnavailable("amqp://away", f"cannot ask for {queue}")

        monkeypatch.setattr(broker, "depth", away)
        await queued.look()
    assert (queued.count, gauge(metrics)) == (0, 0.0)
