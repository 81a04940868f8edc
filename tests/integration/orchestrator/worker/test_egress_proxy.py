"""Where the proxy of an untrusted job connects, and what a hostile job can do."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from solstice_orchestrator.processes.egress import egress_proxy
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts, parse_networks
from solstice_orchestrator.processes.egress.egress_facts import EgressResult
from solstice_orchestrator.processes.egress.egress_proxy import EgressProxy
from tests.polling import wait_until

CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass
class Serving:
    """A proxy on loopback before a server of the tests, and what both saw."""

    address: tuple[str, int]
    origin: int
    names: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    """The answers of the name server, one after the other."""
    received: list[bytes] = field(default_factory=list)
    """What each connection brought to the server, which answers at its end."""
    connections: int = 0
    resets: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = len(self.received)
        self.received.append(b"")
        try:
            while piece := await reader.read(65536):
                self.received[number] += piece
            writer.write(b"all of it")
            await writer.drain()
        except ConnectionResetError:
            self.resets += 1
        finally:
            writer.close()

    async def answer_to(self, sent: bytes, *, ends: bool = True) -> bytes:
        """What the proxy answers until it closes the connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(sent)
        if ends:
            writer.write_eof()
        received = b""
        try:
            while piece := await reader.read(65536):
                received += piece
        except ConnectionResetError:
            # It closed the connection before it had read all that was sent.
            pass
        finally:
            writer.close()
        return received

    async def connect(self, name: str, sent: bytes = b"") -> bytes:
        return await self.answer_to(f"CONNECT {name}:{self.origin} HTTP/1.1\r\n\r\n".encode() + sent)


@pytest.fixture
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    """A proxy that allows `*.example` at the server's port, and 127.0.0.1."""
    async with _open_serving(monkeypatch) as opened:
        yield opened


@asynccontextmanager
async def _open_serving(monkeypatch: pytest.MonkeyPatch, most_bytes: int = 0) -> AsyncIterator[Serving]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    opened = Serving(listener.getsockname(), 0)
    origin = await asyncio.start_server(opened.serve, "127.0.0.1", 0)
    opened.origin = origin.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def getaddrinfo(host: bytes, port: int, **options: Any) -> Sequence[Any]:
        answers = opened.names.get(host.decode())
        if answers is None:
            return await real(host, port, **options)
        addresses = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(egress_proxy, "_write_log", opened.log.append)
    hosts = ",".join(
        f"{host}:{opened.origin}" for host in ("*.example", "127.0.0.1", "[::1]", "127.1", "localhost")
    )
    allowed = AllowedHosts(
        hosts=parse_hosts(hosts), networks=parse_networks("127.0.0.1"), most_bytes=most_bytes
    )

    def record(counts: Counter[str]) -> None:
        opened.counts = Counter(counts)

    proxy = EgressProxy(allowed, record)
    accepting = asyncio.create_task(proxy.accept_from(listener))
    try:
        yield opened
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()
        await proxy.end()
        origin.close()
        await origin.wait_closed()


async def test_a_tunnel_moves_all_bytes_and_each_half_ends_by_itself(serving: Serving) -> None:
    serving.names["a.example"] = [["127.0.0.1"]]
    sent = bytes(range(256)) * 4096
    assert await serving.connect("a.example", sent) == CONNECTED + b"all of it"
    assert serving.received == [sent]
    assert serving.counts == {EgressResult.CONNECTED: 1}
    assert serving.log == []


async def test_a_name_that_changes_its_address_is_connected_to_the_one_that_was_checked(
    serving: Serving,
) -> None:
    # The second answer would be refused, and a connection by name would ask for it.
    serving.names["a.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    assert await serving.connect("a.example") == CONNECTED + b"all of it"
    assert serving.names["a.example"] == [["169.254.169.254"]]
    answer = await serving.connect("a.example")
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"private or of the worker's machine, and in no network of UNTRUSTED_EGRESS_PRIVATE" in answer
    assert serving.counts == {EgressResult.CONNECTED: 1, EgressResult.ADDRESS_REFUSED: 1}


@pytest.mark.parametrize("addresses", [
    ["169.254.169.254"], ["10.0.0.1"], ["127.0.0.2"], ["0.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["fd00:ec2::254"],
    ["fe80::1%1"], ["127.0.0.1", "192.168.0.1"], ["100.64.0.1"], ["224.0.0.1"],
])  # fmt: skip
async def test_an_allowed_name_at_a_private_address_is_refused_without_a_connection(
    serving: Serving, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> Any:
        raise AssertionError("connected")

    monkeypatch.setattr(egress_proxy, "_connection", never)
    serving.names["a.example"] = [addresses]
    assert (await serving.connect("a.example")).startswith(b"HTTP/1.1 403 ")
    # Which address it is, a stranger does not learn.
    assert all(addresses[-1] not in line for line in serving.log)


async def test_other_ports_and_names_are_refused_before_they_are_looked_up(serving: Serving) -> None:
    serving.names["evil.test"] = []  # a lookup would fail
    answer = await serving.connect("evil.test")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert (
        b"evil.test:%d is not among the hosts that untrusted jobs may reach here (UNTRUSTED_EGRESS)"
        % serving.origin
        in answer
    )
    assert (await serving.answer_to(b"CONNECT a.example:22 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    assert (await serving.answer_to(b"GET http://a.example/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    assert serving.counts == {EgressResult.HOST_REFUSED: 3}
    assert serving.connections == 0


class TestLimit:
    MOST = 100_000

    @pytest.fixture
    async def limited(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
        async with _open_serving(monkeypatch, most_bytes=self.MOST) as opened:
            opened.names["a.example"] = [["127.0.0.1"]] * 9
            yield opened

    async def test_a_transfer_beyond_it_is_reset_and_the_job_gets_no_other(self, limited: Serving) -> None:
        for size in (self.MOST // 2, self.MOST // 4):
            # Together they are below it.
            assert await limited.connect("a.example", bytes(size)) == CONNECTED + b"all of it"
        # `answer_to` takes the reset for the end.
        assert await limited.connect("a.example", bytes(self.MOST)) == CONNECTED
        await wait_until(lambda: EgressResult.LIMIT_REACHED in limited.counts)
        assert sum(map(len, limited.received)) < self.MOST
        answer = await limited.connect("a.example")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"exchange 0.0953674 MiB with all hosts, and no more (UNTRUSTED_EGRESS_MIB)" in answer
        assert limited.counts == {EgressResult.CONNECTED: 3, EgressResult.LIMIT_REACHED: 2}
        assert len(limited.log) == 1

    async def test_a_cut_transfer_is_no_whole_one_for_either_side(self, limited: Serving) -> None:
        reader, writer = await asyncio.open_connection(*limited.address)
        writer.write(f"CONNECT a.example:{limited.origin} HTTP/1.1\r\n\r\n".encode() + bytes(self.MOST + 1))
        # The answer `CONNECTED` may be lost by the reset.
        with pytest.raises(ConnectionResetError):
            await reader.readuntil(b"all of it")
        writer.close()
        await wait_until(lambda: limited.resets)

    async def test_heads_count_and_all_connections_share_it(self, limited: Serving) -> None:
        head = f"GET http://a.example:{limited.origin}/ HTTP/1.1\r\nX: {'y' * 15_000}\r\n\r\n".encode()
        opened = [await asyncio.open_connection(*limited.address) for _ in range(7)]
        for _, writer in opened:
            writer.write(head)
        await wait_until(lambda: limited.counts[EgressResult.LIMIT_REACHED])
        assert limited.counts[EgressResult.CONNECTED] == 7
        assert (await limited.answer_to(head)).startswith(b"HTTP/1.1 403 ")
        for _, writer in opened:
            writer.close()


async def test_nothing_behind_a_plain_request_reaches_the_host(serving: Serving) -> None:
    serving.names["a.example"] = [["127.0.0.1"]]
    second = b"GET http://other.example/ HTTP/1.1\r\n\r\n"
    _, writer = await asyncio.open_connection(*serving.address)
    writer.write(
        f"POST http://a.example:{serving.origin}/x HTTP/1.1\r\nHost: evil\r\nContent-Length: 4\r\n\r\nbody".encode()
        + second
    )
    await wait_until(lambda: any(b"body" in each for each in serving.received))
    (received,) = serving.received
    assert received == (
        f"POST /x HTTP/1.1\r\nHost: a.example:{serving.origin}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody".encode()
    )
    writer.close()


async def test_an_endless_head_is_refused(serving: Serving) -> None:
    endless = b"CONNECT a.example:1 HTTP/1.1\r\n" + b"X: y\r\n" * 20_000
    # The answer is lost where the rest of the head comes too late to be read.
    assert (await serving.answer_to(endless[: egress_proxy.HEAD_BYTES * 3], ends=False))[:12] in {
        b"HTTP/1.1 431",
        b"",
    }
    await wait_until(lambda: serving.counts[EgressResult.MALFORMED])
    assert serving.log == ["a request's head has more than 16384 bytes"]


async def test_a_head_that_does_not_come_is_not_waited_for(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_proxy, "HEAD_SECONDS", 0.1)
    assert (await serving.answer_to(b"CONNECT a", ends=False)).startswith(b"HTTP/1.1 408 ")


async def test_a_tunnel_in_which_nothing_moves_ends(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_proxy, "IDLE_SECONDS", 0.1)
    serving.names["a.example"] = [["127.0.0.1"]]
    head = f"CONNECT a.example:{serving.origin} HTTP/1.1\r\n\r\n".encode()
    assert await serving.answer_to(head, ends=False) == CONNECTED


async def test_more_connections_than_may_be_wait_and_cost_nothing(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_proxy, "HEAD_SECONDS", 100.0)
    silent = []
    try:
        for _ in range(egress_proxy.CONNECTIONS + 40):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(serving.address)
            silent.append(connection)
        await asyncio.sleep(0.1)
        late = asyncio.create_task(serving.connect("evil.test"))
        await asyncio.sleep(0.1)
        assert serving.counts == {}
        assert not late.done()
    finally:
        for connection in silent:
            connection.close()
    # All places are free again.
    assert (await late).startswith(b"HTTP/1.1 403 ")


async def test_the_log_shows_each_refusal_once_and_not_more_than_enough(serving: Serving) -> None:
    for number in (1, 1, *range(egress_proxy.LINES + 5)):
        await serving.answer_to(f"CONNECT h{number}.test:443 HTTP/1.1\r\n\r\n".encode())
    assert len(serving.log) == egress_proxy.LINES + 1
    assert len({*serving.log}) == len(serving.log)
    assert serving.log[-1] == "further refusals are not shown"


async def test_a_host_that_is_not_there_is_named(serving: Serving) -> None:
    serving.names["a.example"] = [[]]
    assert b"a.example:%d cannot be reached: no address" % serving.origin in await serving.connect(
        "a.example"
    )
    assert serving.counts == {EgressResult.UNREACHABLE: 1}
