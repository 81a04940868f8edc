"""The parts of nats-py's inside that `nats_client` uses are unchanged."""

import asyncio
import inspect

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, Transport

from solstice_common.broker.jetstream import nats_connection
from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.broker.jetstream.nats_client import GIVEN_AT_ONCE, NatsClient
from solstice_common.runtime import public_interfaces
from tests.fences import asks_for_inside


def test_password_is_written_by_the_connect_command_after_the_transport_stands() -> None:
    opening = inspect.getsource(Client._process_connect_init)
    assert (
        opening.index("connect_tls(") < opening.rindex("connect_tls(") < opening.index("_connect_command()")
    )
    assert opening.count("_connect_command()") == 1
    assert opening.index("_connect_command()") < opening.index("_transport.write(")
    assert "pass" in inspect.getsource(Client._connect_command)
    assert [*inspect.signature(Client._connect_command).parameters] == ["self"]


def test_transport_has_its_writers() -> None:
    assert issubclass(TcpTransport, Transport)
    transport = TcpTransport()  # type: ignore[no-untyped-call]  # nats-py has no types here
    assert set(vars(transport)) >= {"_io_writer", "_bare_io_writer"}
    assert "_io_writer.transport" in inspect.getsource(TcpTransport.connect_tls)
    assert Client()._transport is None
    NatsClient(tls_only=True).abort()


@pytest.mark.parametrize("head", [b"NATS/1.0", b"xyz\r\n\r\n", b"NATS/1.0 \xff\xff\xff\r\n\r\n"])
async def test_head_that_nats_py_cannot_read_has_no_headers(head: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        await Client()._process_headers(head)
    assert await NatsClient(tls_only=False)._process_headers(head) is None
    assert "await self._process_headers(headers)" in inspect.getsource(Client._process_msg)


async def test_head_that_nats_py_can_read_is_read_by_it() -> None:
    client = NatsClient(tls_only=False)
    assert await client._process_headers(b"NATS/1.0\r\nA: b\r\n\r\n") == {"A": "b"}


class WrittenCommands(NatsClient):
    """A client that keeps what it would write."""

    def __init__(self) -> None:
        super().__init__(tls_only=False)
        self.written: list[bytes] = []

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        self.written.append(bytes(cmd))


@pytest.mark.parametrize(
    "headers",
    [
        {"Solstice-Meta": '{"type":"t","text":"\\u00e9"}', "Nats-Msg-Id": "a-1"},
        {"Solstice-Meta": "{}"},
        {"Forged": "a\r\nNats-Rollup: all"},
        {"Tabbed": "a\tb"},
        {},
        None,
    ],
)
async def test_publishes_are_written_as_nats_py_writes_them(headers: dict[str, str] | None) -> None:
    ours, plain = WrittenCommands(), WrittenCommands()
    await ours._send_publish("jobs", "inbox.1", b"body\r\n", 6, headers)
    await Client._send_publish(plain, "jobs", "inbox.1", b"body\r\n", 6, headers)
    assert ours.written == plain.written
    assert len(ours.written) == 1


async def test_messages_are_given_at_once_and_others_have_their_turn_between() -> None:
    client, given = NatsClient(tls_only=False), list[str]()
    answers = Subscription(client, id=7)
    client._subs[7] = answers
    client.give(answers, lambda msg: given.append(msg.subject))
    turns: list[int] = []
    other = asyncio.create_task(_note_each_turn(turns, given))
    await asyncio.sleep(0)
    wire = b"".join(b"MSG inbox.%d 7 2\r\n{}\r\n" % number for number in range(100))
    await client._ps.parse(wire)
    other.cancel()
    assert given == [f"inbox.{number}" for number in range(100)]
    assert turns == [0, *range(GIVEN_AT_ONCE, 100, GIVEN_AT_ONCE)]


async def _note_each_turn(turns: list[int], given: list[str]) -> None:
    while True:
        turns.append(len(given))
        await asyncio.sleep(0)


async def test_given_message_has_its_status_and_none_where_its_head_cannot_be_read() -> None:
    client, given = NatsClient(tls_only=False), list[Msg]()
    answers = Subscription(client, id=7)
    client.give(answers, given.append)
    for head in (b"NATS/1.0 503\r\n\r\n", b"xyz\r\n\r\n"):
        await client._ps.parse(b"HMSG inbox.1 7 %d %d\r\n%s\r\n" % (len(head), len(head), head))
    assert [msg.headers for msg in given] == [{"Status": "503"}, None]


@asks_for_inside("nats")
def test_fence_that_is_left_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    address = read_address("tls://host")
    assert isinstance(nats_connection._client(address), NatsClient)
    monkeypatch.setattr(public_interfaces, "_chosen", lambda: frozenset({"nats"}))
    assert type(nats_connection._client(address)) is Client
