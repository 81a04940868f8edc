"""Uses the inside of nats-py: insists on TLS, and drops connections at once.

`Client` connects without encryption to a server without TLS, even for `tls://`, and sends the password
(github.com/nats-io/nats.py/issues/912, fixed only in its successor). `_connect_command` makes the message
with the password once the transport is connected, so that is the last moment to refuse. `close` waits until
the server has read everything, also when it no longer reads. And headers that nats-py cannot read (a head
without an end of line, a status that is not UTF-8) end its reading of the connection, again at each delivery
of the message.

`SOLSTICE_PUBLIC_INTERFACES=nats` leaves this module out: `tls://` then needs a server with `handshake_first:
true`, a frozen server's socket stays until the process ends, and a message with such a head costs a connection
before it becomes a dead letter (`unreadable_messages`), and those behind it up to an AckWait.
"""

import contextlib

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import SecureConnRequiredError


class NatsClient(Client):
    """A `Client` that can insist on TLS and can be aborted."""

    def __init__(self, *, tls_only: bool) -> None:
        super().__init__()
        self._tls_only = tls_only

    def abort(self) -> None:
        """Close the socket without waiting for unwritten data."""
        transport = self._transport
        if isinstance(transport, TcpTransport):
            for writer in (transport._io_writer, transport._bare_io_writer):  # noqa: SLF001  the fence
                if writer is not None:
                    # Before Python 3.11.3 a TLS connection that has ended cannot be aborted: it lost its protocol.
                    with contextlib.suppress(AttributeError):
                        writer.transport.abort()

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
