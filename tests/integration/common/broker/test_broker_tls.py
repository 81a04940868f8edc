"""TLS with certificates on both sides, the same on every broker that has connections."""

import asyncio
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pytest

from solstice_common.broker import Broker, open_broker, read_topology
from solstice_common.errors import BrokerUnavailable
from tests.fences import asks_for_inside
from tests.garbage import LOST_CONNECTIONS, garbage_of_this_test
from tests.polling import wait_until
from tests.servers.certificates import Authority, authority
from tests.servers.nats_server import NatsServer
from tests.servers.ports import free_ports
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost, rabbitmq_here
from tests.servers.rabbitmq_node import RabbitMQNode
from tests.servers.redis_server import RedisServer
from tests.servers.stream_server import stream_server
from tests.traffic import ROUTE, TOPOLOGY, connected, drain, order

__all__ = ["garbage_of_this_test"]

pytestmark = [
    LOST_CONNECTIONS,
    asks_for_inside("nats"),
]
KINDS: Final = ("rabbitmq", "redis", "nats")


@dataclass(frozen=True, kw_only=True)
class TlsServer:
    """A server that asks each client for a certificate of its authority."""

    url: str
    present: Callable[[tuple[Path, Path]], None]
    """Start again with another certificate and key."""

    def with_options(self, **options: str | Path) -> str:
        return f"{self.url}?{urlencode(options)}"


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def foreign_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "foreign_authority")


@pytest.fixture(scope="module")
def good(trusted: Authority) -> tuple[Path, Path]:
    return trusted.sign("server", "IP:127.0.0.1,DNS:broker.example")


@pytest.fixture(scope="module", params=KINDS)
def server(
    request: pytest.FixtureRequest, trusted: Authority, good: tuple[Path, Path]
) -> Iterator[TlsServer]:
    files: dict[str, Path] = {"ca": trusted.certificate, "cert": trusted.directory / "now.pem"}
    files["key"] = trusted.directory / "now.key"
    _put(good, files)
    (port,) = free_ports(1)
    running: Any
    if request.param == "redis":
        settings = {"tls-port": str(port), "tls-auth-clients": "yes"}
        names = {"tls-ca-cert-file": "ca", "tls-cert-file": "cert", "tls-key-file": "key"}
        running = RedisServer({**settings, **{name: str(files[file]) for name, file in names.items()}})
        scheme = "rediss"
    elif request.param == "nats":
        paths = f"cert_file: '{files['cert']}', key_file: '{files['key']}', ca_file: '{files['ca']}'"
        running = NatsServer(settings=[f"tls {{ {paths}, verify: true }}"])
        port, scheme = running.port, "tls"
    else:
        running = _rabbitmq(port, files)
        scheme = "amqps"
    with running:

        def present(pair: tuple[Path, Path]) -> None:
            running.stop()
            _put(pair, files)
            running.start()

        yield TlsServer(url=f"{scheme}://127.0.0.1:{port}", present=present)


def _put(pair: tuple[Path, Path], files: Mapping[str, Path]) -> None:
    for file, name in zip(pair, ("cert", "key"), strict=True):
        shutil.copy(file, files[name])
        files[name].chmod(0o644)


def _rabbitmq(port: int, files: Mapping[str, Path]) -> RabbitMQNode:
    try:
        found = rabbitmq_here()
    except RuntimeError:
        pytest.skip("not asked for: certificates of RabbitMQ need one on this machine, outside of Docker")
    return RabbitMQNode(
        found,
        settings={
            "listeners.ssl.local": f"127.0.0.1:{port}",
            "ssl_options.cacertfile": str(files["ca"]),
            "ssl_options.certfile": str(files["cert"]),
            "ssl_options.keyfile": str(files["key"]),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "true",
        },
    )


@pytest.fixture(scope="module")
def client(trusted: Authority) -> Mapping[str, Path]:
    certificate, key = trusted.sign("client")
    return {"certfile": certificate, "keyfile": key}


def _has_failed(broker: Broker) -> bool:
    return broker.health.detail != "not connected yet"


async def test_certificates_are_verified_on_both_sides(
    server: TlsServer, trusted: Authority, client: Mapping[str, Path]
) -> None:
    async with connected(server.with_options(cafile=trusted.certificate, **client)) as broker:
        assert (await broker.publish([order(1)]))[0].confirmed
        assert len(await drain(broker, "orders.v1", 1)) == 1
    named = server.with_options(cafile=trusted.certificate, server_name="broker.example", **client)
    async with connected(named) as broker:
        assert broker.health.host == urlsplit(server.url).netloc


async def test_what_cannot_be_verified_is_refused_with_what_to_do(
    server: TlsServer, trusted: Authority, foreign_authority: Authority, client: Mapping[str, Path]
) -> None:
    stranger = dict(zip(("certfile", "keyfile"), foreign_authority.sign("client"), strict=True))
    ca = {"cafile": trusted.certificate}
    for options, remedy in (
        ({"cafile": foreign_authority.certificate, **client}, "name the authority that signed the server's"),
        ({**client}, "name the authority that signed the server's"),
        ({**ca, **client, "server_name": "other.example"}, "as its certificate does, or give that name"),
        (ca, "client certificate: name it as certfile"),
        ({**ca, **stranger}, "have our certificate (certfile) signed by an authority"),
    ):
        async with open_broker(server.with_options(**options), name="test") as broker:
            await wait_until(partial(_has_failed, broker))
            assert remedy in broker.health.detail, options
            with pytest.raises(BrokerUnavailable):
                await broker.ready(0)


@pytest.mark.parametrize("server", ["rabbitmq", "redis"], indirect=True)
async def test_url_without_tls_at_a_port_for_tls_is_told_what_to_write(server: TlsServer) -> None:
    scheme, _, rest = server.url.partition("://")
    async with open_broker(f"{scheme.removesuffix('s')}://{rest}", name="test") as broker:
        await wait_until(partial(_has_failed, broker))
        assert f"write {scheme}://, or name its port without TLS" in broker.health.detail


@pytest.mark.parametrize("server", ["redis", "nats"], indirect=True)
async def test_expired_certificate_is_refused_until_it_is_renewed(
    server: TlsServer, trusted: Authority, good: tuple[Path, Path], client: Mapping[str, Path]
) -> None:
    server.present(trusted.sign("expired", expired=True))
    try:
        url = server.with_options(cafile=trusted.certificate, **client)
        async with open_broker(url, name="test") as broker:
            await wait_until(lambda: "renew the certificate of the server" in broker.health.detail)
            server.present(good)
            await broker.ready(30)
    finally:
        server.present(good)


async def test_expired_certificate_before_rabbitmq_is_refused_until_it_is_renewed(
    rabbitmq_vhost: Vhost, trusted: Authority, good: tuple[Path, Path]
) -> None:
    """A proxy has it: a RabbitMQ takes long to start again."""
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(*trusted.sign("expired", expired=True))
    async with fault_proxy(rabbitmq_vhost.url, tls=shown) as proxy:
        url = proxy.url(rabbitmq_vhost.url).replace("amqp://", "amqps://")
        async with open_broker(f"{url}?cafile={trusted.certificate}", name="test") as broker:
            await wait_until(lambda: "renew the certificate of the server" in broker.health.detail)
            shown.load_cert_chain(*good)
            await broker.ready(30)


async def test_management_api_is_verified_with_the_authority_of_the_broker(
    rabbitmq_vhost: Vhost, trusted: Authority, foreign_authority: Authority, good: tuple[Path, Path]
) -> None:
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(*good)
    api, url = rabbitmq_vhost.server.management_url, rabbitmq_vhost.url.replace("amqp://", "amqps://")
    async with connected(rabbitmq_vhost.url), fault_proxy(api, tls=shown) as proxy:
        at = proxy.url(api).replace("http://", "https://")
        known = f"{url}?cafile={trusted.certificate}&server_name=broker.example"
        found = await read_topology(known, TOPOLOGY, management_url=at)
        assert found.queues.keys() >= {ROUTE.queue, ROUTE.dlq}
        for unknown in (url, f"{url}?cafile={foreign_authority.certificate}"):
            with pytest.raises(BrokerUnavailable, match="name the authority that signed the server's"):
                await read_topology(unknown, TOPOLOGY, management_url=at)


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
async def test_server_without_tls_gets_nothing_in_the_clear(scheme: str) -> None:
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(4096))
        writer.write(b"AMQP\x00\x00\x09\x01")
        writer.close()

    async with (
        stream_server(listen) as port,
        open_broker(f"{scheme}://otter:planted@127.0.0.1:{port}", name="test") as broker,
    ):
        await wait_until(lambda: received and broker.health.detail != "not connected yet")
        assert "speaks no TLS at that port" in broker.health.detail
    assert received[:1] == b"\x16"  # a handshake of TLS
    assert b"planted" not in received
