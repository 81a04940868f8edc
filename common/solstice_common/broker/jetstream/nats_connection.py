"""One connection to a NATS server, whose requests end with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, ServiceUnavailableError

from solstice_common.addresses.hosts import Host
from solstice_common.addresses.tls import explained, with_remedy
from solstice_common.broker.jetstream.nats_address import NatsAddress
from solstice_common.broker.jetstream.nats_records import denied_subject
from solstice_common.broker.links.missing_rights import RightRefused
from solstice_common.broker.links.supervised_link import CONNECT_SECONDS, ConnectionLost, open_at_any
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.public_interfaces import public_only

if TYPE_CHECKING:
    from solstice_common.broker.jetstream.nats_client import NatsClient

T = TypeVar("T")

API_SECONDS: Final = 5.0
"""The longest wait for an answer of JetStream's API."""
CLOSE_SECONDS: Final = 1.0
_SILENCE: Final = ("no answer", "empty response")
WATCH_SECONDS: Final = 1.0
"""How long a connection that nats-py has closed silently may go unnoticed."""
NO_JETSTREAM: Final = (
    "enable it by a jetstream block in the server's configuration (or -js), and for this account"
)
PING_SECONDS: Final = 5
PINGS_OUTSTANDING: Final = 2
"""With these settings, we give up a frozen server after about a quarter of a minute."""


class NatsLost(ConnectionLost):
    """The connection is gone, or does not answer; the text says why."""


class NatsDenied(RightRefused, NatsLost):
    """The user may not publish or subscribe to a subject.

    The server does not have the message.
    """


class NatsConnection:
    """An open connection. `ended` is done, with the reason, when the connection is lost."""

    def __init__(self, client: Client, ended: "asyncio.Future[str]", user: str | None = None) -> None:
        self.client = client
        self._user = user or ""
        self.ended = ended
        self.jetstream: JetStreamContext = client.jetstream(timeout=API_SECONDS)
        self._prefix = client.new_inbox()
        self.refused: NatsDenied | None = None
        """Set when the user may not receive answers, which ends the connection."""
        self.on_denied: Callable[[str, str], object] | None = None
        """Is told each forbidden right and subject; None where a refusal is an error."""
        self.unreadable: set[str] = set()
        """The streams whose messages this user may not read."""
        self._requests: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._number = 0
        self._calls: dict[asyncio.Future[Any], NatsDenied | None] = {}
        """The calls of nats-py that wait, and why each may not be made."""
        ended.add_done_callback(self._fail_all)

    @property
    def server_version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        version = self.client.connected_server_version
        return version.major, version.minor

    async def listen(self) -> None:
        """Subscribe to the answers; `ask` and `call` need that first."""

        async def answered(msg: Msg) -> None:
            self._answered(msg)

        answers = await self.client.subscribe(
            f"{self._prefix}.*", cb=answered, pending_msgs_limit=0, pending_bytes_limit=0
        )
        give = getattr(self.client, "give", None)
        if give is not None:
            give(answers, self._answered)

    async def ask(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> "asyncio.Future[Msg]":
        """Write a request; the future has its answer.

        NatsLost, raised here or by the future, when the connection is lost; NatsDenied by the future.
        """
        if self.ended.done():
            raise NatsLost(self.ended.result())
        self._number += 1
        token = str(self._number)
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        try:
            await self.client.publish(subject, payload, reply=f"{self._prefix}.{token}", headers=headers)
        except nats.errors.Error as error:
            self.notice_closed()
            raise NatsLost(described(error)) from None
        self._requests[token] = subject, future
        future.add_done_callback(lambda _: self._requests.pop(token, None))
        return future

    async def call(self, answer: Awaitable[T]) -> T:
        """Wait for a call of nats-py.

        Raises NatsLost when the server does not answer it, NatsDenied when it forbids it.

        An answer of JetStream that says no raises its APIError.
        """
        calling = asyncio.ensure_future(answer)
        self._calls[calling] = None
        try:
            either: set[asyncio.Future[Any]] = {calling, self.ended}
            await asyncio.wait(either, timeout=API_SECONDS + 1, return_when=asyncio.FIRST_COMPLETED)
            if (refused := self._calls[calling] or self.refused) is not None:
                raise refused
            if not calling.done():
                raise NatsLost(self.ended.result() if self.ended.done() else "no answer in time")
            return calling.result()
        except ServiceUnavailableError as error:
            why = described(error) if error.description else NO_JETSTREAM
            raise NatsLost(f"JetStream is not available: {why}") from None
        except APIError:
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            why = self.ended.result() if self.ended.done() else described(error)
            raise NatsLost(why) from None
        finally:
            del self._calls[calling]
            calling.cancel()

    def denied(self, error: Exception) -> None:
        """Fail the requests to a subject that the server has just forbidden.

        The error does not say which call of nats-py made a request of JetStream: it fails all that wait, each of which is
        tried again.
        """
        found = denied_subject(str(error))
        if found is None:
            return
        right, denied = found
        if self.on_denied is not None:
            self.on_denied(right, denied)
            return
        refused = [
            (subject, future)
            for subject, future in self._requests.values()
            if right == "publish" and subject.lower() == denied.lower() and not future.done()
        ]
        for subject, future in refused:
            _fail(future, self._denied(right, subject))
        if refused:
            return
        if right == "subscribe" and denied.lower().startswith(self._prefix.lower()):
            self.refused = self._denied(right, denied)
            self.ended.set_result(str(self.refused))
            return
        if self._calls and denied.startswith("$"):
            for calling in self._calls:
                self._calls[calling] = self._denied(right, denied)
                calling.cancel()
        else:
            self._denied(right, denied).log("using NATS")

    def _denied(self, right: str, subject: str) -> NatsDenied:
        return NatsDenied(user=self._user, right=right, target=f"subject {subject}")

    def notice_closed(self) -> None:
        """End when nats-py has closed.

        It sets its state to closed first and then writes pending data; when that fails, it never calls
        `closed_cb`.
        """
        if self.client.is_closed and not self.ended.done():
            self.ended.set_result("the connection was lost while something was written")

    async def watch(self) -> None:
        """Notice a connection that was closed silently, also while no request is pending."""
        while not self.ended.done():
            await asyncio.sleep(WATCH_SECONDS)
            self.notice_closed()

    def _answered(self, msg: Msg) -> None:
        _, future = self._requests.get(msg.subject.rpartition(".")[2], (None, None))
        if future is not None and not future.done():
            future.set_result(msg)

    def _fail_all(self, ended: "asyncio.Future[str]") -> None:
        why = "the connection was closed" if ended.cancelled() else ended.result()
        for _, future in list(self._requests.values()):
            if not future.done():
                _fail(future, NatsLost(why))


def open_connection(address: NatsAddress, name: str) -> AbstractAsyncContextManager[NatsConnection]:
    """Return a connection to the first host that accepts one; NatsLost says why none does.

    ConfigurationError names a file that cannot be used.
    """
    address.check()
    return open_at_any(address.hosts, partial(open_connection_at, address), name)


@asynccontextmanager
async def open_connection_at(address: NatsAddress, host: Host, name: str) -> AsyncIterator[NatsConnection]:
    """Connect to a host under a client name.

    Leaving closes it within two seconds in any state of the server. nats-py never reconnects it: its
    reconnecting forgets pull requests, and leaves requests waiting that will have no answer. Raises NatsLost
    when no connection can be made.
    """
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reported: list[Exception] = []
    connections: list[NatsConnection] = []

    async def on_error(error: Exception) -> None:
        reported.append(error)
        del reported[:-8]
        for connection in connections:
            connection.denied(error)

    async def on_closed() -> None:
        if not ended.done():
            ended.set_result(described(reported[-1]) if reported else "the server closed the connection")

    try:
        password, tls = address.password_now(), address.tls_context()
    except ConfigurationError as error:
        # A file that existed at the start is being replaced, or was removed.
        raise NatsLost(str(error)) from None
    client = _client(address)
    watching: asyncio.Task[None] | None = None
    scheme = "tls" if address.tls_only else "nats"
    try:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    servers=[f"{scheme}://{host}"],
                    name=name,
                    inbox_prefix=address.inbox_prefix,
                    user=address.user,
                    password=password,
                    token=address.token,
                    tls=tls,
                    tls_hostname=address.tls.server_name,
                    tls_handshake_first=address.handshake_first or (address.tls_only and public_only("nats")),
                    error_cb=on_error,
                    closed_cb=on_closed,
                    allow_reconnect=False,
                    connect_timeout=int(CONNECT_SECONDS),
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=PINGS_OUTSTANDING,
                    # Data that cannot be written now must not arrive later, after its outcome was reported as
                    # unknown.
                    pending_size=-1,
                )
                connection = NatsConnection(client, ended, address.user)
                connections.append(connection)
                await connection.listen()
        except TimeoutError:
            reasons = [error for error in reported if not isinstance(error, TimeoutError)]
            why = described(reasons[-1]) if reasons else f"no answer within {CONNECT_SECONDS:g} s"
            raise NatsLost(_silence_explained(why, address)) from None
        except (nats.errors.Error, OSError) as error:
            # nats-py reports only that no servers are left; it passed the reason to the callback before.
            why = described(reported[-1] if reported else error)
            why = explained(why, None if tls is None else address.tls)
            raise NatsLost(_silence_explained(why, address)) from None
        watching = asyncio.create_task(connection.watch(), name=f"{name} watches its connection")
        yield connection
    finally:
        if watching is not None:
            watching.cancel()
        if not ended.done():
            ended.set_result("the connection was closed")
        await _close(client)


def described(error: BaseException) -> str:
    """Return the error, in one line."""
    if isinstance(error, nats.errors.SecureConnRequiredError):
        return "the server offers no TLS, and AMQP_URL says tls://: nothing was sent to it"
    if isinstance(error, APIError) and error.description:
        return f"{error.description} ({error.err_code})" if error.err_code else str(error.description)
    text = " ".join(str(error).split()).removeprefix("nats: ").strip("'\"")
    return with_remedy(text or type(error).__name__)


def _silence_explained(text: str, address: NatsAddress) -> str:
    """Explain the reason of a failed connection where the server has said nothing. Pure."""
    return f"{text}; {address.remedy_of_silence}" if text.startswith(_SILENCE) else text


def _client(address: NatsAddress) -> "Client | NatsClient":
    if public_only("nats"):
        return Client()
    # Imported late: without the fence, its module may fail to import.
    from solstice_common.broker.jetstream.nats_client import NatsClient  # noqa: PLC0415

    return NatsClient(tls_only=address.tls_only)


async def _close(client: "Client | NatsClient") -> None:
    with suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    abort = getattr(client, "abort", None)
    if abort is not None:
        abort()


def _fail(future: "asyncio.Future[Msg]", error: Exception) -> None:
    future.set_exception(error)
    # The caller may have been cancelled: mark the error as retrieved, so that asyncio logs nothing.
    future.exception()
