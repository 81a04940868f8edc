"""An orchestrator is ready once its queues are declared and consumed."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import httpx2
import pytest
from structlog.testing import CapturingLogger
from yarl import URL

from solstice_common.broker import open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from solstice_orchestrator import daemon
from solstice_orchestrator.settings import OrchestratorSettings
from tests.polling import WAIT_SECONDS, wait_until, wait_until_true
from tests.servers.rabbitmq import Vhost

ALL = ".*"
NONE = "^$"
QUEUE = "solstice.jobs.v1"
ALL_BUT_QUEUE = rf"^(?!{QUEUE}$)"


@pytest.fixture
def user(rabbitmq_vhost: Vhost) -> Iterator[str]:
    name = f"otter-{uuid.uuid4().hex[:8]}"
    rabbitmq_vhost.server.api("PUT", f"users/{name}", {"password": "pw", "tags": ""})
    yield name
    rabbitmq_vhost.server.api("DELETE", f"users/{name}")


def grant(vhost: Vhost, user: str, *, configure: str, read: str) -> None:
    vhost.api("PUT", "permissions", user, {"configure": configure, "write": ALL, "read": read})


@asynccontextmanager
async def orchestrator(amqp_url: str, directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    settings = OrchestratorSettings(
        amqp_url=amqp_url,
        database_url=f"sqlite:///{directory / 'store.db'}",
        workspaces=directory / "workspaces",
        orchestrator_port=0,
        executor="scripted",
        governor="off",
    )
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    running = asyncio.create_task(daemon.run(settings, stop, on_ready=urls.put_nowait))
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            url = await urls.get()
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            yield client
    finally:
        stop.set()
        await running


async def test_ready_means_that_the_queues_are_declared_and_consumed(
    rabbitmq_vhost: Vhost, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaring, consuming = CapturingLogger(), CapturingLogger()
    monkeypatch.setattr("solstice_common.broker.receiving.receiver.log", declaring)
    monkeypatch.setattr("solstice_common.broker.links.missing_rights.log", consuming)
    grant(rabbitmq_vhost, user, configure=NONE, read=ALL_BUT_QUEUE)
    address = URL(rabbitmq_vhost.url).with_user(user).with_password("pw")
    async with orchestrator(str(address), tmp_path) as client:

        async def ready() -> tuple[int, str]:
            answer = await client.get("/readyz")
            return answer.status_code, str(answer.json()["missing"])

        async def is_ready() -> bool:
            return (await ready())[0] == 200

        await wait_until(lambda: declaring.calls)
        status, why = await ready()
        assert status == 503, "connected, but the declaration was refused"
        assert "the queues are not declared" in why
        assert "lacks the right 'configure'" in why

        # Everything but reading the queue of requests, which has to exist for that.
        async with open_broker(rabbitmq_vhost.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(full_topology(BrokerSettings()))
        grant(rabbitmq_vhost, user, configure=ALL, read=ALL_BUT_QUEUE)
        await wait_until(lambda: any(call.kwargs.get("operation") == "consuming" for call in consuming.calls))
        status, why = await ready()
        assert (status, why) == (503, f"{{'broker': 'the queue {QUEUE} is not consumed'}}")

        grant(rabbitmq_vhost, user, configure=ALL, read=ALL)
        await wait_until_true("it is ready", is_ready)
        async with await aio_pika.connect(rabbitmq_vhost.url) as connection:
            channel = await connection.channel(on_return_raises=True)
            declared = await channel.get_queue(QUEUE)
            assert declared.declaration_result.consumer_count == 1
            exchange = await channel.get_exchange("solstice.jobs")
            await exchange.publish(aio_pika.Message(b"no JSON"), "jobrequest.v1")
