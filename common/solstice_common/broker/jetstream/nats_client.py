"""Uses the inside of nats-py: insists on TLS, drops connections, and publishes faster.

`Client` connects without encryption to a server without TLS, even for `tls://`, and sends the password
(github.com/nats-io/nats.py/issues/912, fixed only in its successor). `_connect_command` makes the message
with the password once the transport is connected, so that is the last moment to refuse. `close` waits until
the server has read everything, also when it no longer reads. And headers that nats-py cannot read (a head
without an end of line, a status that is not UTF-8) end its reading of the connection, again at each delivery
of the message.

Publishing confirms a tenth more messages a second: headers are written in one piece, answers reach their reader
without a queue and a task between them, and are read a few at a time.

`SOLSTICE_PUBLIC_INTERFACES=nats` leaves this module out: `tls://` then needs a server with `handshake_first:
true`, a frozen server's socket stays until the process ends, and a message with such a head costs a connection
before it becomes a dead letter (`unreadable_messages`), and those behind it up to an AckWait.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import SecureConnRequiredError

GIVEN_AT_ONCE: Final = 16
"""The messages of a read that are given before other tasks have their turn.

A server that syncs each message answers all that it had at once. If we read 200 answers before we write the next
message, it waits for us as long, again and again.
"""


class NatsClient(Client):
    """A `Client` that can insist on TLS and can be aborted."""

    def __init__(self, *, tls_only: bool) -> None:
        super().__init__()
        self._tls_only = tls_only
        self._given = 0
        self._takers: dict[int, Callable[[Msg], object]] = {}
        """Who is given the messages of a subscription at once, by its id."""

    def give(self, subscription: Subscription, take: Callable[[Msg], object]) -> None:
        """Call `take` for each message of the subscription while it is read.

        It must not wait.
        """
        self._takers[subscription._id] = take  # noqa: SLF001  the fence

    def abort(self) -> None:
        """Close the socket without waiting for unwritten data."""
        transport = self._transport
        if isinstance(transport, TcpTransport):
            for writer in (transport._io_writer, transport._bare_io_writer):  # noqa: SLF001  the fence
                if writer is not None:
                    # Before Python 3.11.3 a TLS connection that has ended cannot be aborted: it lost its protocol.
                    with contextlib.suppress(AttributeError):
                        writer.transport.abort()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self._takers.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            take(self._build_message(sid, subject, reply, data, await self._process_headers(headers)))
            self._given += 1
            if not self._given % GIVEN_AT_ONCE:
                await asyncio.sleep(0)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, str] | None
    ) -> None:
        if not headers or not all(text.isprintable() for text in headers.values()):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        lines = "".join([f"{name}: {text}\r\n" for name, text in headers.items()])
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        command = f"HPUB {subject} {reply} {len(head)} {len(head) + payload_size}\r\n".encode()
        await self._send_command(b"".join((command, head, payload, b"\r\n")))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Return the headers of a message; none where they cannot be read."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return None

    def _connect_command(self) -> bytes:
        if self._tls_only and not self._is_encrypted():
            raise SecureConnRequiredError
        return super()._connect_command()

    def _is_encrypted(self) -> bool:
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None  # noqa: SLF001  the fence
        return writer is not None and writer.get_extra_info("ssl_object") is not None
