"""Traps of NATS, of its client and of lost links, each on a real server."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.transport import TcpTransport

from solstice_common.broker import Broker, Consumer, Message, PublishStatus, open_broker
from solstice_common.broker.capabilities import Certainty
from solstice_common.broker.delivery import MAX_DELIVERIES, Ack, Refuse
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.jetstream.jetstream_broker import JetStreamBroker
from solstice_common.broker.protocol import NO_HEADERS, Delivery, HeaderValue
from solstice_common.errors import BrokerUnavailable, TopologyMismatch
from solstice_common.runtime import public_interfaces
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, Route, full_topology
from tests.architecture_tables import ROOT
from tests.fences import asks_for_inside
from tests.garbage import LOST_CONNECTIONS, garbage_of_this_test
from tests.polling import wait_until
from tests.servers.certificates import authority
from tests.servers.nats_server import NatsServer, with_credentials
from tests.servers.stream_server import stream_server
from tests.servers.versions import NATS_2_10

__all__ = ["garbage_of_this_test"]

EVERY_VERSION = True

pytestmark = LOST_CONNECTIONS

ROUTE = Route(exchange="orders", queue="orders.v1", routing_key="order.v1", dlx="dead", dlq="dead.v1")
TOPOLOGY = ROUTE.topology(QueueType.QUORUM)
WAIT_SECONDS = 30


def order(
    body: bytes, *, headers: Mapping[str, HeaderValue] = NO_HEADERS, correlation_id: str | None = None
) -> Message:
    return Message(
        exchange="orders",
        routing_key="order.v1",
        body=body,
        type="order.v1",
        headers=headers,
        correlation_id=correlation_id,
    )


@pytest.fixture
def server(nats_flavour: str) -> Iterator[NatsServer]:
    with NatsServer(flavour=nats_flavour) as started:
        yield started


@asynccontextmanager
async def connected(
    url: str, *, confirm_timeout_seconds: float = 20.0, ack_wait_seconds: float = 30.0
) -> AsyncIterator[JetStreamBroker]:
    async with JetStreamBroker.open(
        url, name="test", confirm_timeout_seconds=confirm_timeout_seconds, ack_wait_seconds=ack_wait_seconds
    ) as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(TOPOLOGY)
        yield broker


async def publish(broker: Broker, *messages: Message) -> None:
    assert [each.status for each in await broker.publish(messages)] == [PublishStatus.CONFIRMED] * len(
        messages
    )


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(deliveries) < count:
            deliveries.extend(await consumer.batch())
    return deliveries


async def drain(broker: Broker, queue: str) -> list[bytes]:
    """All bodies of a queue, until nothing comes for a second."""
    bodies: list[bytes] = []
    async with broker.consume(queue, prefetch=500) as consumer:
        while True:
            try:
                async with asyncio.timeout(1):
                    batch = await consumer.batch()
            except TimeoutError:
                return bodies
            bodies.extend(delivery.body for delivery in batch)
            await consumer.settle([(delivery, Ack()) for delivery in batch])


async def until_disconnected(broker: Broker) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while broker.health.connected:  # noqa: ASYNC110  waits for a server
            await asyncio.sleep(0.05)


# -- publishing ------------------------------------------------------------------------------------------------------


async def test_each_flavour_is_the_server_that_it_names(nats_flavour: str, server: NatsServer) -> None:
    async with await nats.connect(server.url) as plain:
        version = plain.connected_server_version
    assert ((version.major, version.minor) == (2, 10)) == (nats_flavour == NATS_2_10)


async def test_five_kills_under_two_hundred_publishers_lose_nothing_that_was_confirmed(
    server: NatsServer,
) -> None:
    confirmed: set[bytes] = set()
    unknown = 0
    numbers = iter(range(1_000_000))
    stop = asyncio.Event()
    async with connected(server.url, confirm_timeout_seconds=5.0) as broker:

        async def publisher() -> None:
            nonlocal unknown
            while not stop.is_set():
                body = str(next(numbers)).encode()
                (outcome,) = await broker.publish([order(body)])
                if outcome.confirmed:
                    confirmed.add(body)
                else:
                    assert outcome.status is PublishStatus.UNKNOWN, outcome
                    unknown += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(200):
                tasks.create_task(publisher())
            for _ in range(5):
                before = len(confirmed)
                async with asyncio.timeout(WAIT_SECONDS):
                    while len(confirmed) < before + 300:  # noqa: ASYNC110  waits for a server
                        await asyncio.sleep(0.02)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            stop.set()
        # `drain` takes a silent second for the end, and a link waits for longer after several failures.
        await broker.ready(WAIT_SECONDS)
        arrived = await drain(broker, ROUTE.queue)
    assert len(confirmed) > 1500
    assert unknown > 0
    assert confirmed - set(arrived) == set()


async def test_what_a_killed_server_was_sent_is_unknown_at_once_and_the_rest_waits_for_the_next_one(
    server: NatsServer,
) -> None:
    # Nothing here ends by itself: no confirm is overdue before the test is.
    async with connected(server.url, confirm_timeout_seconds=3600) as broker:
        confirmed = 0
        server_is_back = asyncio.Event()

        async def publish_until_unknown() -> None:
            nonlocal confirmed
            while not server_is_back.is_set():
                (outcome,) = await broker.publish([order(b"before")])
                if not outcome.confirmed:
                    assert outcome.status is PublishStatus.UNKNOWN, outcome
                    return
                confirmed += 1

        publishers = [asyncio.create_task(publish_until_unknown()) for _ in range(200)]
        async with asyncio.timeout(WAIT_SECONDS):
            while confirmed < 300:  # noqa: ASYNC110  waits for a server
                await asyncio.sleep(0.02)
        # Frozen first: what is written now has no answer when the server is killed.
        await asyncio.to_thread(server.freeze)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.kill)
        await until_disconnected(broker)
        # The server stays down: an outcome can only come from the lost connection.
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait(publishers, return_when=asyncio.FIRST_COMPLETED)
        waiting = asyncio.create_task(broker.publish([order(b"after")]))
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(WAIT_SECONDS):
            (outcome,) = await waiting
        assert outcome.confirmed, "what was not written waits for the next connection"
        server_is_back.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*publishers)


async def test_connection_that_nats_py_closes_without_a_word_is_replaced(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server.url) as broker:
        await publish(broker, order(b"1"))
        lost = asyncio.Event()

        # A lost connection under load: while one write fails, more is waiting to be written. nats-py calls itself
        # closed, writes the rest, and raises before it calls `closed_cb`.
        async def drain(_: object) -> None:
            await lost.wait()
            raise ConnectionResetError

        with monkeypatch.context() as patch:
            patch.setattr(TcpTransport, "drain", drain)
            first = asyncio.create_task(broker.publish([order(b"2")]))
            await asyncio.sleep(0)
            more = asyncio.create_task(broker.publish([order(b"3")]))
            await asyncio.sleep(0.1)
            lost.set()
            await until_disconnected(broker)
        # Bytes of either may have reached the server, which then confirmed it.
        outcomes = (*await first, *await more)
        assert {each.status for each in outcomes} <= {PublishStatus.CONFIRMED, PublishStatus.UNKNOWN}
        await broker.ready(WAIT_SECONDS)
        await publish(broker, order(b"4"))


async def test_frozen_server_leaves_publishes_unknown_and_is_used_again_when_it_thaws(
    server: NatsServer,
) -> None:
    async with connected(server.url, confirm_timeout_seconds=1.0) as broker:
        await publish(broker, order(b"1"))
        server.freeze()
        began = time.monotonic()
        (outcome,) = await broker.publish([order(b"2")])
        assert outcome.status is PublishStatus.UNKNOWN
        assert time.monotonic() - began < 5
        await until_disconnected(broker)
        server.thaw()
        await broker.ready(WAIT_SECONDS)
        await publish(broker, order(b"3"))
        assert set(await drain(broker, ROUTE.queue)) >= {b"1", b"3"}


async def test_leaving_does_not_wait_for_a_frozen_server(server: NatsServer) -> None:
    async with connected(server.url) as broker:
        large = broker.publish([order(bytes(1 << 20)) for _ in range(40)])
        publishing = asyncio.create_task(large)
        await asyncio.sleep(0)
        server.freeze()
        await asyncio.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 8
    assert {each.status for each in await publishing} <= {PublishStatus.UNKNOWN, PublishStatus.CONFIRMED}
    server.thaw()


async def test_body_over_the_servers_limit_is_rejected_and_the_next_message_passes(nats_flavour: str) -> None:
    with NatsServer(max_payload="1MB", flavour=nats_flavour) as server:
        async with connected(server.url) as broker:
            too_large, header_alone, small = await broker.publish(
                [order(bytes(2 << 20)), order(bytes((1 << 20) - 10)), order(b"small")]
            )
            # The body alone fits; with its header the server would close the connection.
            assert (too_large.status, header_alone.status) == (PublishStatus.REJECTED, PublishStatus.REJECTED)
            assert "max_payload" in too_large.detail
            assert small.confirmed
            assert broker.health.connected


async def test_full_stream_rejects_and_says_why(server: NatsServer) -> None:
    async with connected(server.url) as broker:
        client = await nats.connect(server.url)
        try:
            config = (await client.jetstream().stream_info("orders_v1")).config
            await client.jetstream().update_stream(config.evolve(max_msgs=2))
        finally:
            await client.close()
        outcomes = await broker.publish([order(b"1"), order(b"2"), order(b"3")])
        assert [each.confirmed for each in outcomes] == [True, True, False]
        assert outcomes[2].status is PublishStatus.REJECTED
        assert "maximum messages exceeded" in outcomes[2].detail
        # A limit that rejects is the operator's: it is no mismatch.
        await broker.declare(TOPOLOGY)


async def test_purged_message_can_be_replayed_although_the_server_remembers_its_id(
    server: NatsServer,
) -> None:
    async with connected(server.url) as broker:
        once = order(b"1", headers={IDEMPOTENCY_HEADER: "push-1"})
        await publish(broker, once)
        client = await nats.connect(server.url)
        try:
            await client.jetstream().purge_stream("orders_v1")
        finally:
            await client.close()
        await publish(broker, once)
        assert await drain(broker, ROUTE.queue) == [b"1"]


async def test_user_without_the_right_to_publish_learns_so_at_once(nats_flavour: str) -> None:
    allowed = '["$JS.API.>", "$JS.ACK.>", "$KV.>", "solstice.presence.>", "_INBOX.>"]'
    users = [
        "authorization { users: [",
        '  { user: all, password: "pw" }',
        f'  {{ user: reader, password: "pw", permissions: {{ publish: {allowed}, subscribe: [">"] }} }}',
        "] }",
    ]
    with NatsServer(settings=users, flavour=nats_flavour) as server:
        async with connected(with_credentials(server.url, "all:pw")) as broker:
            await publish(broker, order(b"1"))
        async with connected(with_credentials(server.url, "reader:pw")) as reader:
            began = time.monotonic()
            (outcome,) = await reader.publish([order(b"2")])
            assert outcome.status is PublishStatus.REJECTED
            assert outcome.lacks_right
            assert "orders.v1" in outcome.detail
            assert time.monotonic() - began < 10
            assert await drain(reader, ROUTE.queue) == [b"1"]


# -- consuming -------------------------------------------------------------------------------------------------------


async def test_killed_server_brings_back_what_was_held_and_nothing_that_was_acked(server: NatsServer) -> None:
    async with connected(server.url) as broker:
        await publish(broker, *(order(str(number).encode()) for number in range(100)))
        async with broker.consume(ROUTE.queue, prefetch=100) as consumer:
            unsettled = await take(consumer, 100)
            await consumer.settle([(delivery, Ack()) for delivery in unsettled[:60]])
            await asyncio.to_thread(server.kill)
            await consumer.settle([(delivery, Ack()) for delivery in unsettled[60:70]])
            await asyncio.to_thread(server.start)
            again = await take(consumer, 40)
            await consumer.settle([(delivery, Ack()) for delivery in again])
        assert sorted(int(each.body) for each in again) == list(range(60, 100))
        assert all(each.redelivered for each in again)
        assert await drain(broker, ROUTE.queue) == []


async def test_dead_consumers_messages_come_to_another_after_ack_wait_and_not_before(
    server: NatsServer,
) -> None:
    async with connected(server.url, ack_wait_seconds=2) as broker:
        await publish(broker, order(b"1"), order(b"2"))
        client = await nats.connect(server.url)
        try:
            # A consumer that dies: it takes both and never answers again.
            dying = await client.jetstream().pull_subscribe_bind("solstice", stream="orders_v1")
            assert len(await dying.fetch(2, timeout=5)) == 2
            began = time.monotonic()
        finally:
            await client.close()
        async with broker.consume(ROUTE.queue, prefetch=5) as consumer:
            again = await take(consumer, 2)
            assert time.monotonic() - began > 1.5
            assert [each.redelivered for each in again] == [True, True]
            # Held for longer than AckWait: a living consumer renews it.
            await asyncio.sleep(4)
            assert (depth := await broker.depth(ROUTE.queue)) is not None
            assert (depth.ready, depth.consumers) == (0, 1)
            await consumer.settle([(each, Ack()) for each in again])
        assert await drain(broker, ROUTE.queue) == []


async def test_stream_deleted_under_a_consumer_is_declared_again_and_consumed(server: NatsServer) -> None:
    async with connected(server.url) as broker, broker.consume(ROUTE.queue, prefetch=5) as consumer:
        await publish(broker, order(b"1"))
        (unsettled,) = await take(consumer, 1)
        client = await nats.connect(server.url)
        try:
            await client.jetstream().delete_stream("orders_v1")
        finally:
            await client.close()
        (lost,) = await broker.publish([order(b"2")])
        assert lost.status is PublishStatus.REJECTED
        assert "stream is missing" in lost.detail
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await broker.publish([order(b"3")]))[0].confirmed:  # noqa: ASYNC110  asks a server
                await asyncio.sleep(0.2)
        # The handle of the old stream has the number of the new message, and must not ack that.
        await consumer.settle([(unsettled, Ack())])
        (fresh,) = await take(consumer, 1)
        assert (fresh.body, fresh.redelivered) == (b"3", False)
        await consumer.settle([(fresh, Ack())])


async def test_consumer_deleted_alone_is_made_again(server: NatsServer) -> None:
    async with connected(server.url) as broker, broker.consume(ROUTE.queue, prefetch=5) as consumer:
        await asyncio.sleep(0.3)
        client = await nats.connect(server.url)
        try:
            await client.jetstream().delete_consumer("orders_v1", "solstice")
        finally:
            await client.close()
        await publish(broker, order(b"1"))
        (fresh,) = await take(consumer, 1)
        await consumer.settle([(fresh, Ack())])
        assert fresh.body == b"1"


async def test_message_that_was_delivered_too_often_is_a_dead_letter(server: NatsServer) -> None:
    async with connected(server.url) as broker:
        await publish(broker, order(b"poison", correlation_id="r-1"), order(b"good"))
        for _ in range(MAX_DELIVERIES):
            async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
                (delivery,) = await take(consumer, 1)
                assert delivery.body == b"poison"
        async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
            (good,) = await take(consumer, 1)
            assert good.body == b"good"
            await consumer.settle([(good, Ack())])
        async with broker.consume(ROUTE.dlq, prefetch=1) as consumer:
            (dead,) = await take(consumer, 1)
            assert (dead.body, dead.correlation_id) == (b"poison", "r-1")
            assert dead.headers["x-solstice-reason"] == "too_many_deliveries"
            await consumer.settle([(dead, Ack())])


async def test_dead_letter_that_cannot_be_published_stays_in_the_queue(server: NatsServer) -> None:
    async with connected(server.url) as broker:
        await publish(broker, order(b"bad"))
        client = await nats.connect(server.url)
        try:
            await client.jetstream().delete_stream("dead_v1")
            async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
                (delivery,) = await take(consumer, 1)
                await consumer.settle([(delivery, Refuse(reason="not_json", detail="odd"))])
                (again,) = await take(consumer, 1)
                assert again.redelivered
                await broker.declare(TOPOLOGY)
                await consumer.settle([(again, Refuse(reason="not_json", detail="odd"))])
        finally:
            await client.close()
        assert await drain(broker, ROUTE.dlq) == [b"bad"]
        assert await drain(broker, ROUTE.queue) == []


async def test_consumer_that_waits_outlives_the_end_of_its_pulls(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_common.broker.jetstream.jetstream_pull.PULL_SECONDS", 1.0)
    monkeypatch.setattr("solstice_common.broker.jetstream.jetstream_pull.HEARTBEAT_SECONDS", 0.4)
    async with connected(server.url) as broker, broker.consume(ROUTE.queue, prefetch=3) as consumer:
        for number in range(3):
            await asyncio.sleep(1.3)
            await publish(broker, *(order(str(number).encode()) for _ in range(3)))
            deliveries = await take(consumer, 3)
            await consumer.settle([(each, Ack()) for each in deliveries])
            assert {each.body for each in deliveries} == {str(number).encode()}


# -- permissions, and missing objects
# --------------------------------------------------------------------------------------


async def test_wrong_password_is_reported_and_the_right_one_is_used_when_it_holds_again(
    nats_flavour: str,
) -> None:
    def users(password: str) -> list[str]:
        return [f'authorization {{ user: otter, password: "{password}" }}']

    with NatsServer(settings=users("right"), flavour=nats_flavour) as server:
        async with connected(with_credentials(server.url, "otter:right")) as broker:
            await publish(broker, order(b"1"))
            server.settings = users("changed")
            await asyncio.to_thread(server.restart)
            with pytest.raises(BrokerUnavailable, match=r"(?i)authorization"):
                await broker.ready(2)
            assert "right" not in broker.health.detail
            server.settings = users("right")
            await asyncio.to_thread(server.restart)
            await broker.ready(WAIT_SECONDS)
            await publish(broker, order(b"2"))
            assert await drain(broker, ROUTE.queue) == [b"1", b"2"]


async def test_server_without_jetstream_is_reported(nats_flavour: str) -> None:
    with NatsServer(jetstream=False, flavour=nats_flavour) as server:
        async with open_broker(server.url, name="test") as broker:
            with pytest.raises(BrokerUnavailable, match=r"JetStream is not available.*jetstream"):
                await broker.ready(3)


async def test_stream_that_would_lose_messages_is_a_mismatch(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    try:
        await client.jetstream().add_stream(
            name="orders_v1", subjects=["orders.v1"], storage="memory", retention="workqueue"
        )
    finally:
        await client.close()
    async with open_broker(server.url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        with pytest.raises(TopologyMismatch, match="storage=memory"):
            await broker.declare(TOPOLOGY)


@pytest.mark.parametrize(
    ("sync_interval", "certainty", "expected_detail"),
    [("always", Certainty.YES, None), (None, Certainty.NO, "sync_interval")],
)
async def test_monitoring_port_shows_whether_a_confirm_is_durable(
    sync_interval: str | None, certainty: Certainty, expected_detail: str | None, nats_flavour: str
) -> None:
    with NatsServer(sync_interval=sync_interval, flavour=nats_flavour) as server:
        async with open_broker(server.url, name="test", nats_monitor_url=server.monitor_url) as broker:
            await broker.ready(WAIT_SECONDS)
            async with asyncio.timeout(WAIT_SECONDS):
                while broker.capabilities.durable_on_confirm is not certainty:  # noqa: ASYNC110  asks a server
                    await asyncio.sleep(0.02)
            assert (broker.health.degraded is None) == (expected_detail is None)
            assert expected_detail is None or expected_detail in str(broker.health.degraded)
        async with open_broker(server.url, name="test", nats_sync_always=True) as broker:
            await broker.ready(WAIT_SECONDS)
            assert broker.health.degraded is None


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, and what it signed: a server's certificate and a client's."""
    directory = tmp_path_factory.mktemp("tls")
    signer = authority(directory / "authority")
    shutil.copy(signer.certificate, directory / "ca.pem")
    for name in ("server", "client"):
        certificate, key = signer.sign(name, "IP:127.0.0.1,DNS:nats.example")
        shutil.copy(certificate, directory / f"{name}.pem")
        shutil.copy(key, directory / f"{name}.key")
    return directory


def tls_lines(certificates: Path, *, more: str = "") -> list[str]:
    files = f"cert_file: '{certificates}/server.pem', key_file: '{certificates}/server.key'"
    return [f"tls {{ {files}, ca_file: '{certificates}/ca.pem', verify: true {more} }}"]


@asks_for_inside("nats")
async def test_tls_with_client_certificates_is_verified_both_ways(
    certificates: Path, nats_flavour: str
) -> None:
    files = f"certfile={certificates}/client.pem&keyfile={certificates}/client.key"
    with NatsServer(settings=tls_lines(certificates), flavour=nats_flavour) as server:
        url = server.url.replace("nats://", "tls://")
        async with connected(f"{url}?cafile={certificates}/ca.pem&{files}") as broker:
            await publish(broker, order(b"1"))
            assert await drain(broker, ROUTE.queue) == [b"1"]
        async with connected(
            f"{url}?cafile={certificates}/ca.pem&{files}&server_name=nats.example"
        ) as broker:
            await publish(broker, order(b"2"))
        for wrong, expected_detail in {
            f"{url}?{files}": "certificate verify failed",
            f"{url}?cafile={certificates}/ca.pem&{files}&server_name=other.example": "(?i)hostname mismatch",
            f"{url}?cafile={certificates}/ca.pem": ".",
        }.items():
            async with open_broker(wrong, name="stranger") as stranger:
                with pytest.raises(BrokerUnavailable, match=expected_detail):
                    await stranger.ready(2)


@asks_for_inside("nats")
async def test_server_without_tls_gets_no_password_when_tls_was_asked_for(server: NatsServer) -> None:
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.15.1","proto":1,"headers":true,"auth_required":true,"max_payload":1048576}\r\n'
        )
        received.extend(await reader.read())
        writer.close()

    async with (
        stream_server(listen) as port,
        open_broker(f"tls://otter:planted@127.0.0.1:{port}", name="test") as broker,
    ):
        with pytest.raises(BrokerUnavailable, match="offers no TLS"):
            await broker.ready(3)
    assert bytes(received) == b""
    async with open_broker(server.url.replace("nats://", "tls://otter:planted@"), name="test") as broker:
        with pytest.raises(BrokerUnavailable, match="offers no TLS"):
            await broker.ready(3)


@asks_for_inside("nats")
async def test_server_that_wants_the_handshake_first_gets_it_when_asked_and_else_says_how(
    certificates: Path, nats_flavour: str
) -> None:
    files = (
        f"cafile={certificates}/ca.pem&certfile={certificates}/client.pem&keyfile={certificates}/client.key"
    )
    with NatsServer(
        settings=tls_lines(certificates, more=", handshake_first: true"), flavour=nats_flavour
    ) as first:
        url = first.url.replace("nats://", "tls://")
        async with (
            open_broker(first.url, name="plain") as plain,
            open_broker(f"{url}?{files}", name="late") as late,
        ):
            # The server hangs up after its two seconds for a handshake.
            await wait_until(
                lambda: "write tls:// and the option handshake_first=true" in plain.health.detail
            )
            await wait_until(lambda: "write handshake_first=true" in late.health.detail)
        async with connected(f"{url}?{files}&handshake_first=true") as broker:
            await publish(broker, order(b"1"))


async def test_by_its_public_interface_tls_asks_for_a_handshake_first(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, server: NatsServer, nats_flavour: str
) -> None:
    monkeypatch.setattr(public_interfaces, "_chosen", lambda: frozenset({"nats"}))
    files = (
        f"cafile={certificates}/ca.pem&certfile={certificates}/client.pem&keyfile={certificates}/client.key"
    )
    with NatsServer(
        settings=tls_lines(certificates, more=", handshake_first: true"), flavour=nats_flavour
    ) as first:
        async with connected(f"{first.url.replace('nats://', 'tls://')}?{files}") as broker:
            await publish(broker, order(b"1"))
    async with open_broker(f"{server.url.replace('nats://', 'tls://')}?{files}", name="test") as broker:
        with pytest.raises(BrokerUnavailable):
            await broker.ready(2)


# -- others ----------------------------------------------------------------------------------------------------------


async def test_foreign_client_publishes_a_job_request_with_nothing_but_nats_py(server: NatsServer) -> None:
    """As docs/messages.md describes: the bytes to the queue's subject, with JetStream."""
    body = (ROOT / "schemas/examples/jobrequest.v1.minimal.json").read_bytes()
    async with open_broker(server.url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(full_topology(BrokerSettings()))
        client = await nats.connect(server.url)
        try:
            jetstream = client.jetstream()
            assert (await jetstream.publish("solstice.jobs.v1", body)).seq == 1
            meta = '{"correlation_id":"r-7","type":"jobrequest.v1","headers":{"x-solstice-attempt":1}}'
            await jetstream.publish("solstice.jobs.v1", body, headers={"Solstice-Meta": meta})
            await jetstream.publish("solstice.jobs.v1", body, headers={"Solstice-Meta": "not JSON"})
        finally:
            await client.close()
        async with broker.consume("solstice.jobs.v1", prefetch=5) as consumer:
            plain, with_header, odd = await take(consumer, 3)
            await consumer.settle([(each, Ack()) for each in (plain, with_header, odd)])
    assert [each.body for each in (plain, with_header, odd)] == [body] * 3
    assert (plain.type, plain.correlation_id, dict(plain.headers)) == (None, None, {})
    assert (with_header.type, with_header.correlation_id, dict(with_header.headers)) == (
        "jobrequest.v1",
        "r-7",
        {"x-solstice-attempt": 1},
    )
    assert (odd.type, dict(odd.headers)) == (None, {})
