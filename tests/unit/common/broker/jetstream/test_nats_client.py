"""The parts of nats-py's inside that `nats_client` uses are unchanged."""

import inspect

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport, Transport

from solstice_common.broker.jetstream import nats_connection
from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.broker.jetstream.nats_client import NatsClient
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


@asks_for_inside("nats")
def test_fence_that_is_left_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    address = read_address("tls://host")
    assert isinstance(nats_connection._client(address), NatsClient)
    monkeypatch.setattr(public_interfaces, "_chosen", lambda: frozenset({"nats"}))
    assert type(nats_connection._client(address)) is Client
