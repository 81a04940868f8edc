"""When the broker denies permissions, the log says what an operator must grant."""

import asyncio
import random
import uuid
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger
from yarl import URL

from solstice_common.broker import open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.store import open_store
from tests.polling import wait_until_true
from tests.servers.rabbitmq import RabbitMQServer, Vhost

WAIT_SECONDS = 60


async def test_a_missing_permission_is_reported_once_until_it_is_granted(
    rabbitmq: RabbitMQServer, rabbitmq_vhost: Vhost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("solstice_common.broker.receiving.receiver.log", log)
    settings = BrokerSettings(amqp_url=rabbitmq_vhost.url)
    user, topology = f"reader-{uuid.uuid4().hex[:8]}", full_topology(settings)
    permissions = f"permissions/{rabbitmq_vhost.name}/{user}"
    rabbitmq.api("PUT", f"users/{user}", {"password": "reads-only", "tags": ""})
    rabbitmq.api("PUT", permissions, {"configure": "^$", "write": ".*", "read": ".*"})
    address = URL(rabbitmq_vhost.url).with_user(user).with_password("reads-only")
    try:
        async with (
            open_store(f"sqlite:///{tmp_path}/store.db") as store,
            open_broker(str(address), name="test") as broker,
            asyncio.timeout(WAIT_SECONDS),
        ):

            async def reported() -> bool:
                return any("lacks the right" in call.kwargs.get("detail", "") for call in log.calls)

            async def consuming() -> bool:
                depth = await broker.depth(settings.amqp_queue)
                return depth is not None and depth.consumers == 1

            intake = Intake(broker=broker, store=store, metrics=Metrics(), rng=random.Random(1))
            work = asyncio.create_task(intake.run(jobs_route(settings), topology, prefetch=1), name="intake")
            await wait_until_true("the missing permission is told", reported)
            rabbitmq.api("PUT", permissions, {"configure": ".*", "write": ".*", "read": ".*"})
            await wait_until_true("it consumes", consuming)
            work.cancel()
            await asyncio.wait([work])
    finally:
        rabbitmq.api("DELETE", f"users/{user}")
    refusals = [call for call in log.calls if "lacks the right" in call.kwargs.get("detail", "")]
    assert [(call.method_name, call.args) for call in refusals] == [("warning", ("broker.awaited",))]
