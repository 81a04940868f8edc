"""Messages larger than any request become dead letters, and the services stay small."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import nats

from solstice_common.broker import Broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, Route, full_topology, jobs_route
from tests.builders import job_request
from tests.raw_amqp import properties, raw_publisher
from tests.raw_http import peak_mib
from tests.servers.nats_server import NatsServer
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.rabbitmq import Vhost
from tests.servers.redis_server import RedisServer
from tests.traffic import connected, wait_for_ready

LARGE: Final = bytes(15 << 20)
"""Just below the largest message that RabbitMQ 4.0 takes."""
NATS_BYTES: Final = 5 << 20
"""Below `max_payload` of the test's server."""
COUNT: Final = 12
"""In each queue: all together are more than the services may take."""
MOST_MIB: Final = 200

Write = Callable[[Route, bytes], None]


async def all_are_dead(broker: Broker, process: OrchestratorProcess, url: str, write: Write) -> None:
    """Write large messages and a good one behind them; see each end as it should."""
    jobs = jobs_route(BrokerSettings(amqp_url=url))
    for route in (jobs, CANCELS):
        for _ in range(COUNT):
            await asyncio.to_thread(write, route, LARGE)
    request = job_request(repo_url="https://git.example/a/b.git")
    await asyncio.to_thread(write, jobs, request.encode())
    await asyncio.to_thread(process.logged, "requests.stored", admitted=1)
    for route in (jobs, CANCELS):
        await wait_for_ready(broker, route.dlq, COUNT)
    assert peak_mib(process.process.pid) < MOST_MIB


async def test_large_messages_of_rabbitmq_are_dead_letters_and_not_held(
    rabbitmq_vhost: Vhost, tmp_path: Path
) -> None:
    """A prefetch of them was held, and a gigabyte with it."""
    url = rabbitmq_vhost.url

    def write(route: Route, body: bytes) -> None:
        with raw_publisher(url) as publisher:
            assert publisher.publish(route.exchange, route.routing_key, properties(b""), body)

    with orchestrator(SharedFiles(directory=tmp_path), start=FRESH_ORCHESTRATOR, AMQP_URL=url) as process:
        async with connected(url, topology=full_topology(BrokerSettings(amqp_url=url))) as broker:
            await all_are_dead(broker, process, url, write)


async def test_large_entries_of_redis_are_dead_letters_and_not_held(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    server = redis_server
    url = server.fresh_url()

    def write(route: Route, body: bytes) -> None:
        with server.client() as client:
            client.xadd(route.queue, {"body": body})

    with orchestrator(SharedFiles(directory=tmp_path), start=FRESH_ORCHESTRATOR, AMQP_URL=url) as process:
        async with connected(url, topology=full_topology(BrokerSettings(amqp_url=url))) as broker:
            await all_are_dead(broker, process, url, write)


async def test_large_messages_of_nats_are_dead_letters_and_not_held(tmp_path: Path) -> None:
    """A prefetch of them was held, or made the server disconnect us."""
    with NatsServer() as server:
        jobs = jobs_route(BrokerSettings(amqp_url=server.url))
        request = job_request(repo_url="https://git.example/a/b.git")
        async with connected(server.url, topology=full_topology(BrokerSettings())) as broker:
            for route in (jobs, CANCELS):
                await published(server.url, route.queue, [LARGE[:NATS_BYTES]] * COUNT)
            await published(server.url, jobs.queue, [request.encode()])
            with orchestrator(
                SharedFiles(directory=tmp_path), start=FRESH_ORCHESTRATOR, AMQP_URL=server.url
            ) as process:
                await asyncio.to_thread(process.logged, "requests.stored", admitted=1)
                for route in (jobs, CANCELS):
                    await wait_for_ready(broker, route.dlq, COUNT)
                assert peak_mib(process.process.pid) < MOST_MIB
                assert not any(each["event"] == "broker.disconnected" for each in process.events)


async def published(url: str, subject: str, bodies: Sequence[bytes]) -> None:
    """Publish as another program would."""
    client = await nats.connect(url)
    for body in bodies:
        await client.jetstream().publish(subject, body)
    await client.close()
