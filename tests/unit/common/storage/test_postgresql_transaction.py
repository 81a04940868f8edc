"""The parts of asyncpg's inside that `postgresql_transaction` uses are unchanged."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
import pytest

from solstice_common.runtime import public_interfaces
from solstice_common.storage.postgresql_connections import Connection
from solstice_common.storage.postgresql_transaction import TransactionMode, transaction
from tests.servers.stream_server import stream_server

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

READY = b"Z\0\0\0\5I"
WELCOME = b"R\0\0\0\x08\0\0\0\0" + b"S\0\0\0\x18server_version\x0017.0\0"
ANSWERS = {
    b"P": b"1\0\0\0\4",
    b"B": b"2\0\0\0\4",
    b"E": b"C\0\0\0\x0aBEGIN\0",
    b"Q": b"C\0\0\0\x0bCOMMIT\0" + READY,
}


class ScriptedServer:
    """Implements the PostgreSQL protocol for connects and statements without results."""

    def __init__(self) -> None:
        self.received: list[tuple[bytes, bytes]] = []
        """The kinds of the messages and their content, in order."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0] - 4)
        writer.write(WELCOME + READY)
        while kind := await reader.read(1):
            if kind == b"X":
                break
            size = struct.unpack(">I", await reader.readexactly(4))[0]
            self.received.append((kind, (await reader.readexactly(size - 4)).strip(b"\0")))
            # Answers leave at the Sync, which a simple query includes; before it nothing may be waited for.
            writer.write(ANSWERS[kind])
        writer.close()


@pytest.fixture
async def scripted() -> AsyncIterator["tuple[ScriptedServer, Pool]"]:
    script = ScriptedServer()
    async with (
        stream_server(script.serve) as port,
        asyncpg.create_pool(f"postgresql://x@127.0.0.1:{port}/x", min_size=1, ssl=False) as pool,
    ):
        yield script, pool


async def statements(pool: "Pool") -> None:
    connection: Connection
    async with pool.acquire() as connection, transaction(connection, TransactionMode.WRITING):
        await connection.execute("SELECT 1")


async def test_begin_goes_with_the_first_statement(
    scripted: "tuple[ScriptedServer, Pool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pool = scripted
    monkeypatch.setattr(public_interfaces, "_chosen", frozenset)
    await statements(pool)
    assert [kind for kind, _ in server.received[:5]] == [b"P", b"B", b"E", b"Q", b"Q"]
    assert server.received[0][1] == b"BEGIN ISOLATION LEVEL READ COMMITTED"
    assert [statement for _, statement in server.received[3:5]] == [b"SELECT 1", b"COMMIT"]


async def test_by_the_public_interface_it_goes_alone(
    scripted: "tuple[ScriptedServer, Pool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pool = scripted
    monkeypatch.setattr(public_interfaces, "_chosen", lambda: frozenset({"asyncpg"}))
    await statements(pool)
    assert server.received[:3] == [
        (b"Q", b"BEGIN ISOLATION LEVEL READ COMMITTED"),
        (b"Q", b"SELECT 1"),
        (b"Q", b"COMMIT"),
    ]


def test_asyncpgs_inside_is_the_one_that_was_read() -> None:
    # When this fails: read how the new version takes answers that no statement of its own asked for (`_process__*` in
    # coreproto.pyx), run tests/integration/common/test_postgresql*.py on a real server, and write the new digest here.
    inside = files(asyncpg).joinpath("protocol", "coreproto.pyx").read_bytes()
    assert hashlib.sha256(inside).hexdigest() == (
        "e341fb8b6dd07f87f943dba94c75a78e1c117cf18193ffe669535ce3523540c4"
    )
    assert "_transport" in asyncpg.Connection.__slots__
