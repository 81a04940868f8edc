"""A TCP proxy that fails on demand: pass, freeze, drop, refuse.

It can also hold a client until the test has acted.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.servers.ports import free_ports


class FaultProxy:
    """Forwards between a client and `host:port`; listens on `port` of 127.0.0.1."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._greeting: bytes | None = None
        self._awaited: tuple[bytes, Callable[[], object]] | None = None
        self._losing: tuple[bytes, int] = (b"", 0)
        self._writers: set[asyncio.StreamWriter] = set()
        (self.port,) = free_ports(1)
        self.connections = 0
        """How many connections passed so far."""
        self.greeted = 0
        """How many connections were closed instead."""

    def url(self, amqp_url: str) -> str:
        """The same URL, through this proxy."""
        parts = urlsplit(amqp_url)
        user = f"{parts.username}:{parts.password}@" if parts.username else ""
        return parts._replace(netloc=f"{user}127.0.0.1:{self.port}").geturl()

    def pass_through(self) -> None:
        """Return to normal; frozen bytes continue."""
        self._refusing = False
        self._greeting = None
        self._open.set()

    def freeze(self) -> None:
        """Stop all bytes in both directions, silently: a black hole."""
        self._open.clear()

    def drop(self) -> None:
        """Reset every connection; new ones pass."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Reset every connection, and new ones as soon as they are made."""
        self._refusing = True
        self.drop()

    def refuse_new(self) -> None:
        """Reset new connections as soon as they are made; those that are open go on."""
        self._refusing = True

    def close_wire(self, greeting: bytes = b"") -> None:
        """Send this to each new client, and close cleanly.

        A proxy without a server behind it does that.
        """
        self._greeting = greeting
        self.drop()

    @property
    def hangs_up(self) -> bool:
        return self._greeting is not None

    def before(self, sign: bytes, act: Callable[[], object]) -> None:
        """Call `act` before the first bytes with `sign` pass to the server.

        It is called in a thread.
        """
        self._awaited = (sign, act)

    def lose_replies(self, sign: bytes, times: int) -> None:
        """Pass the next bytes with `sign` to the server, then reset the connection.

        The client gets no reply to them.

        That happens so many times.
        """
        self._losing = (sign, times)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        if self._greeting is not None:
            self.greeted += 1
            writer.write(self._greeting)
            writer.close()
            await writer.wait_closed()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        pair = {writer, far_writer}
        reply_is_lost = asyncio.Event()
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(
                    self._pump(reader, far_writer, reply_is_lost, outward=True), name="proxy-out"
                )
                both.create_task(self._pump(far_reader, writer, reply_is_lost), name="proxy-in")
        finally:
            self._writers -= pair
            for end in pair:
                end.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reply_is_lost: asyncio.Event,
        *,
        outward: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                if outward and self._awaited is not None and self._awaited[0] in data:
                    (_, act), self._awaited = self._awaited, None
                    await asyncio.to_thread(act)
                sign, times = self._losing
                if outward and times and sign in data:
                    self._losing = (sign, times - 1)
                    reply_is_lost.set()
                elif not outward and reply_is_lost.is_set():
                    break
                writer.write(data)
                await writer.drain()
        # A black hole swallows the end of a connection as well.
        await self._open.wait()
        writer.transport.abort()


@asynccontextmanager
async def fault_proxy(amqp_url: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FaultProxy]:
    """A proxy to the broker at `amqp_url` that passes everything at first.

    With `tls`, clients must use TLS.
    """
    target = urlsplit(amqp_url)
    proxy = FaultProxy(target.hostname or "127.0.0.1", target.port or 5672)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def ended(task: "asyncio.Task[None]") -> None:
            # A task that is cancelled before its first step runs nothing of its own.
            tasks.discard(task)
            writer.transport.abort()

        task = asyncio.create_task(proxy.serve(reader, writer), name="proxy-connection")
        tasks.add(task)
        task.add_done_callback(ended)

    server = await asyncio.start_server(accept, "127.0.0.1", proxy.port, ssl=tls)
    try:
        yield proxy
    finally:
        server.close()
        proxy.drop()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
