"""Links that break, hang, or reach another broker.

Each trap is listed in test_rabbitmq_traps.
"""

import asyncio
import random
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiormq.connection import TCPTransportFactory
from yarl import URL

from solstice_common.broker import Broker, Published, PublishStatus, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.errors import BrokerUnavailable, ConfigurationError, TopologyMismatch
from solstice_common.topology import Binding, Exchange, Queue, QueueType, Topology
from tests.polling import wait_until
from tests.servers.certificates import certificate_for_loopback
from tests.servers.ports import free_ports
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.traffic import (
    ROUTE,
    TOPOLOGY,
    WAIT_SECONDS,
    Traffic,
    connected,
    drain,
    order,
    take,
    wait_for_ready,
)

CONFIRMED, UNROUTABLE, REJECTED, UNKNOWN = PublishStatus


async def test_a_restart_in_the_middle_of_publishing_and_consuming_loses_nothing(
    own_rabbitmq_vhost: Vhost,
) -> None:
    async with connected(own_rabbitmq_vhost.url) as broker:
        traffic = Traffic(broker)
        async with traffic.flowing():
            await traffic.progress()
            await asyncio.to_thread(own_rabbitmq_vhost.server.restart)
            await traffic.progress()
        assert traffic.confirmed <= traffic.seen
        assert traffic.outcomes[CONFIRMED] >= 100


async def test_a_killed_broker_loses_nothing_it_confirmed(own_rabbitmq_vhost: Vhost) -> None:
    server = own_rabbitmq_vhost.server
    async with connected(own_rabbitmq_vhost.url) as broker:
        traffic = Traffic(broker)
        async with traffic.flowing():
            await traffic.progress()
            await asyncio.to_thread(server.kill)
            await wait_until(lambda: not broker.health.connected)
            await asyncio.to_thread(server.start)
            await traffic.progress()
        assert traffic.confirmed <= traffic.seen


async def test_many_faults_under_load_lose_nothing_that_was_confirmed(rabbitmq_vhost: Vhost) -> None:
    rng = random.Random(20261120)
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(f"{proxy.url(rabbitmq_vhost.url)}?heartbeat=1", confirm_timeout_seconds=2) as broker,
    ):
        traffic = Traffic(broker)
        async with traffic.flowing():
            for _ in range(8):
                await traffic.progress(20)
                fault = rng.choice([proxy.drop, proxy.drop, proxy.freeze, proxy.refuse])
                fault()
                await asyncio.sleep(rng.uniform(0.0, 0.5))
                if rng.random() < 0.5:
                    proxy.drop()
                proxy.pass_through()
        assert traffic.confirmed <= traffic.seen
        # Each fault cost both connections; the consumer is back, on the last of them.
        assert proxy.connections > 8
        await wait_for_ready(broker, ROUTE.queue, 0)
        depth = await broker.depth(ROUTE.queue)
        assert depth is not None
    # A publish with an unknown outcome may have arrived: only those may be seen beyond the confirmed ones.
    assert traffic.outcomes.get(UNKNOWN, 0) >= len(traffic.seen - traffic.confirmed)


async def test_connections_closed_by_an_operator_come_back(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        traffic = Traffic(broker)
        async with traffic.flowing():
            for _ in range(2):
                await traffic.progress()
                async with asyncio.timeout(WAIT_SECONDS):
                    # The management page learns of a connection a moment after it was made.
                    while await asyncio.to_thread(rabbitmq_vhost.close_connections) == 0:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            await traffic.progress()
        assert traffic.confirmed <= traffic.seen


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a\xce",
    ],
    ids=["nothing", "HTTP", "half a hello"],
)
async def test_another_server_at_the_address_is_survived(rabbitmq_vhost: Vhost, greeting: bytes) -> None:
    """A proxy without a backend answers, or a broker that is shutting down."""
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(proxy.url(rabbitmq_vhost.url)) as broker,
    ):
        await _outlives_hanging_up(broker, proxy, greeting)
    await _no_task_is_left()


async def test_a_broker_that_has_hung_up_before_we_read_is_outlived(
    rabbitmq_vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop that is busy when the connection stands reads so late."""
    create = TCPTransportFactory.create
    async with fault_proxy(rabbitmq_vhost.url) as proxy:

        async def create_late(
            factory: TCPTransportFactory, url: URL, **options: Any
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await create(factory, url, **options)
            if proxy.hangs_up:
                await wait_until(reader.at_eof)
            return reader, writer

        monkeypatch.setattr(TCPTransportFactory, "create", create_late)
        async with connected(proxy.url(rabbitmq_vhost.url)) as broker:
            await _outlives_hanging_up(broker, proxy, b"")
    await _no_task_is_left()


async def test_a_broker_that_comes_back_empty_gets_everything_declared_again(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker, broker.consume(ROUTE.queue, prefetch=5) as consumer:
        await asyncio.to_thread(rabbitmq_vhost.server.recreate_vhost, rabbitmq_vhost.name)
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await broker.publish([order(1)]))[0].confirmed:  # noqa: ASYNC110  asks a server
                await asyncio.sleep(0.05)
        (delivery,) = await take(consumer, 1)
        await consumer.settle([(delivery, Ack())])
        await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_an_inequivalent_queue_names_both_sides_and_leaves_the_connection_usable(
    rabbitmq_vhost: Vhost,
) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.publish([order(0)])
        with pytest.raises(TopologyMismatch) as mismatch:
            await broker.declare(ROUTE.topology(QueueType.CLASSIC))
        assert (mismatch.value.kind, mismatch.value.name) == ("queue", ROUTE.queue)
        _, ours, on_broker, _ = str(mismatch.value).splitlines()
        assert ours == f"  ours:   durable=True, x-dead-letter-exchange='{ROUTE.dlx}'"
        assert re.match(f"  broker: .*inequivalent arg 'x-[a-z-]+' for queue '{ROUTE.queue}'", on_broker)
        assert "current is" in on_broker
        assert (await broker.publish([order(1)]))[0].confirmed
        assert broker.health.connected
        await broker.declare(TOPOLOGY)
        assert len(await drain(broker, ROUTE.queue, 2)) == 2


async def test_an_inequivalent_exchange_is_a_mismatch_too(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        other = Topology(exchanges=(Exchange(name=ROUTE.exchange, kind="fanout"),), queues=(), bindings=())
        with pytest.raises(TopologyMismatch, match="exchange 'orders' exists"):
            await broker.declare(other)


async def test_a_queue_that_became_another_while_we_were_away_stops_only_its_own_consumer(
    rabbitmq_vhost: Vhost,
) -> None:
    both = Topology(
        exchanges=TOPOLOGY.exchanges,
        queues=(*TOPOLOGY.queues, Queue(name="other", arguments={"x-queue-type": "quorum"})),
        bindings=(*TOPOLOGY.bindings, Binding(exchange=ROUTE.exchange, queue="other", routing_key="other")),
    )
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(proxy.url(rabbitmq_vhost.url), topology=TOPOLOGY) as broker,
    ):
        await broker.declare(both)
        async with (
            broker.consume(ROUTE.queue, prefetch=5) as stopped,
            broker.consume("other", prefetch=5) as going,
        ):
            proxy.refuse()
            await wait_until(lambda: not broker.health.connected)
            await asyncio.to_thread(rabbitmq_vhost.api, "DELETE", "queues", ROUTE.queue)
            await asyncio.to_thread(rabbitmq_vhost.api, "PUT", "queues", ROUTE.queue, {"durable": True})
            proxy.pass_through()
            with pytest.raises(TopologyMismatch, match=ROUTE.queue):
                await asyncio.wait_for(stopped.batch(), WAIT_SECONDS)
            await broker.ready(WAIT_SECONDS)
            assert ROUTE.queue in broker.health.detail
            assert (await broker.publish([order(5, routing_key="other")]))[0].confirmed
            (delivery,) = await take(going, 1)
            await going.settle([(delivery, Ack())])


def refusing(proxy: FaultProxy) -> None:
    proxy.refuse()


def frozen(proxy: FaultProxy) -> None:
    proxy.freeze()


@pytest.mark.parametrize("fault", [refusing, frozen])
async def test_closing_while_connecting_does_not_hang(
    rabbitmq_vhost: Vhost, fault: Callable[[FaultProxy], None]
) -> None:
    async with fault_proxy(rabbitmq_vhost.url) as proxy:
        fault(proxy)
        async with asyncio.timeout(20):
            async with open_broker(proxy.url(rabbitmq_vhost.url), name="test") as broker:
                with pytest.raises(BrokerUnavailable, match=r"no connection to the broker at amqp://"):
                    await broker.ready(0.5)
                assert not broker.health.connected
        await _no_task_is_left()


@pytest.mark.parametrize("fault", [refusing, frozen])
async def test_a_cancelled_process_that_is_still_connecting_ends(
    rabbitmq_vhost: Vhost, fault: Callable[[FaultProxy], None]
) -> None:
    async def service(url: str) -> None:
        async with (
            open_broker(url, name="test") as broker,
            broker.consume(ROUTE.queue, prefetch=1) as consumer,
        ):
            await consumer.batch()

    async with fault_proxy(rabbitmq_vhost.url) as proxy:
        fault(proxy)
        running = asyncio.create_task(service(proxy.url(rabbitmq_vhost.url)))
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.wait([running], timeout=20)
        assert running.cancelled()
        await _no_task_is_left()


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.003, 0.01, 0.03, 0.1])
async def test_cancellation_at_any_moment_of_opening_ends_it(rabbitmq_vhost: Vhost, moment: float) -> None:
    async def service() -> None:
        async with (
            connected(rabbitmq_vhost.url) as broker,
            broker.consume(ROUTE.queue, prefetch=1) as consumer,
        ):
            await consumer.batch()

    running = asyncio.create_task(service())
    await asyncio.sleep(moment)
    running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.cancelled()
    await _no_task_is_left()


async def test_closing_over_a_black_hole_is_bounded_and_ends_every_waiting_publish(
    rabbitmq_vhost: Vhost,
) -> None:
    async with fault_proxy(rabbitmq_vhost.url) as proxy:
        waiting: list[asyncio.Task[list[Published]]] = []
        async with asyncio.timeout(30):
            async with connected(proxy.url(rabbitmq_vhost.url)) as broker:
                await broker.publish([order(0), order(1)])
                async with broker.consume(ROUTE.queue, prefetch=2) as consumer:
                    unsettled = await take(consumer, 2)
                    proxy.freeze()
                    await consumer.settle([(unsettled[0], Ack())])

                    async def publish() -> list[Published]:
                        return list(await broker.publish([order(2)]))

                    waiting.append(asyncio.create_task(publish()))
                    await asyncio.sleep(0.1)
            (outcome,) = await waiting[0]
        assert outcome.status is UNKNOWN
        proxy.pass_through()
    await _no_task_is_left()
    async with connected(rabbitmq_vhost.url) as broker:
        # The ack was swallowed as well: both are there, and nothing was dead-lettered.
        assert len(await drain(broker, ROUTE.queue, 2)) == 2
        await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_a_missing_server_is_reported_with_the_reason() -> None:
    (port,) = free_ports(1)
    async with open_broker(
        f"amqp://127.0.0.1:{port}/%2f", name="test", confirm_timeout_seconds=0.2
    ) as broker:
        with pytest.raises(BrokerUnavailable, match="Connect"):
            await broker.ready(1)
        with pytest.raises(BrokerUnavailable):
            await broker.depth(ROUTE.queue)
        (outcome,) = await broker.publish([order(0)])
        assert outcome.status is UNKNOWN
        assert "Connect" in outcome.detail


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda url: url.replace("guest:guest@", "guest:wrong@"), "ACCESS_REFUSED"),
        (lambda url: f"{url}-nowhere", "vhost"),
    ],
    ids=["wrong password", "no such vhost"],
)
async def test_a_broker_that_does_not_want_us_is_quoted(
    rabbitmq_vhost: Vhost, change: Callable[[str], str], word: str
) -> None:
    async with open_broker(
        change(rabbitmq_vhost.url.replace("tester:tester@", "guest:guest@")), name="test"
    ) as broker:
        with pytest.raises(BrokerUnavailable, match=word):
            await broker.ready(2)


async def test_there_is_a_connection_for_each_direction_under_a_name_a_person_finds(
    rabbitmq_vhost: Vhost,
) -> None:
    async with connected(rabbitmq_vhost.url):
        found: set[str] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found) < 2:
                path = f"vhosts/{rabbitmq_vhost.name}/connections"
                rows = await asyncio.to_thread(rabbitmq_vhost.server.api, "GET", path)
                found = {
                    row["client_properties"]["connection_name"] for row in rows if "client_properties" in row
                }
                await asyncio.sleep(0.1)
        assert found == {"test (publish)", "test (consume)"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_for_loopback(tmp_path_factory.mktemp("tls"))


async def test_a_link_over_tls_is_verified_and_recovers_like_any_other(
    rabbitmq_vhost: Vhost, certificate: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with fault_proxy(rabbitmq_vhost.url, tls=context) as proxy:
        url = proxy.url(rabbitmq_vhost.url).replace("amqp://", "amqps://")
        async with open_broker(url, name="stranger") as stranger:
            with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
                await stranger.ready(2)
        async with connected(f"{url}?cafile={certificate}") as broker:
            traffic = Traffic(broker)
            async with traffic.flowing():
                await traffic.progress()
                proxy.drop()
                await traffic.progress()
            assert traffic.confirmed <= traffic.seen
    await _no_task_is_left()


@pytest.mark.parametrize("url", ["amqp://", "amqp:///%2f", "amqp://[::1"])
async def test_a_url_without_a_host_is_a_mistake_in_the_settings(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AMQP_URL"):
        async with open_broker(url, name="test"):
            pass


async def _outlives_hanging_up(broker: Broker, proxy: FaultProxy, greeting: bytes) -> None:
    proxy.close_wire(greeting)
    await wait_until(lambda: proxy.greeted >= 4)
    assert not broker.health.connected
    assert broker.health.detail
    proxy.pass_through()
    await broker.ready(WAIT_SECONDS)
    assert (await broker.publish([order(0)]))[0].confirmed
    assert len(await drain(broker, ROUTE.queue, 1)) == 1


async def _no_task_is_left() -> None:
    """Only what pytest and the proxy run themselves."""
    await wait_until(lambda: all(_is_of_the_test(task) for task in asyncio.all_tasks()))


def _is_of_the_test(task: "asyncio.Task[object]") -> bool:
    return task is asyncio.current_task() or task.get_name().startswith("proxy-")
