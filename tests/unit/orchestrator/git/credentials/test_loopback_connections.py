"""Every connection that a small server accepted is closed when it ends."""

import asyncio
import socket

from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections


async def accepted() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]:
    """The streams of a connection, and its other end."""
    own, other = socket.socketpair()
    other.settimeout(10)
    reader, writer = await asyncio.open_connection(sock=own)
    return reader, writer, other


async def wait_forever(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_one_that_was_accepted_the_moment_before_the_end_is_closed() -> None:
    connections = LoopbackConnections(wait_forever, "test")
    reader, writer, other = await accepted()
    connections.accept(reader, writer)
    await connections.end()
    assert writer.transport.is_closing()
    assert await asyncio.to_thread(other.recv, 1) == b""
    other.close()


async def test_one_that_is_served_is_closed_at_the_end() -> None:
    connections = LoopbackConnections(wait_forever, "test")
    reader, writer, other = await accepted()
    connections.accept(reader, writer)
    await asyncio.sleep(0)
    await connections.end()
    assert await asyncio.to_thread(other.recv, 1) == b""
    other.close()


async def test_one_that_comes_after_the_end_is_closed() -> None:
    connections = LoopbackConnections(wait_forever, "test")
    await connections.end()
    reader, writer, other = await accepted()
    connections.accept(reader, writer)
    assert await asyncio.to_thread(other.recv, 1) == b""
    other.close()


async def test_what_was_answered_arrives_before_the_connection_is_closed() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"yes")

    connections = LoopbackConnections(answer, "test")
    reader, writer, other = await accepted()
    connections.accept(reader, writer)
    assert await asyncio.to_thread(other.recv, 3) == b"yes"
    assert await asyncio.to_thread(other.recv, 1) == b""
    await connections.end()
    other.close()


async def test_more_than_the_limit_are_closed() -> None:
    connections = LoopbackConnections(wait_forever, "test", limit=1)
    first, second = await accepted(), await accepted()
    for reader, writer, _ in (first, second):
        connections.accept(reader, writer)
    assert await asyncio.to_thread(second[2].recv, 1) == b""
    assert not first[1].transport.is_closing()
    await connections.end()
    first[2].close()
    second[2].close()
