"""One connection to Redis, with a limit for each call.

redis-py's clients send a command again when its reply is lost, which would store a message twice: we use only
its connection, which never does that, and a lost reply ends the connection. Its default `socket_timeout` of 5 s
would end every long wait: we give each call its own limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import hiredis
from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from solstice_common.addresses.hosts import Host
from solstice_common.addresses.tls import TlsFiles, explained, with_remedy
from solstice_common.broker.links.background import background
from solstice_common.broker.links.missing_rights import RightRefused
from solstice_common.broker.links.supervised_link import CONNECT_SECONDS, ConnectionLost, open_at_any
from solstice_common.broker.redis_streams.redis_denials import denied_command, denied_in_script, is_denied
from solstice_common.broker.redis_streams.redis_scripts import RedisScript
from solstice_common.broker.redis_streams.redis_url import RedisAddress
from solstice_common.errors import ConfigurationError

CALL_SECONDS: Final = 15.0
PING_SECONDS: Final = 5.0
"""Seconds between signs of life on an idle connection."""
CLOSE_SECONDS: Final = 2.0
READ_BYTES: Final = 1 << 18
"""The most bytes read at once, more than most batches have."""


class RedisLost(ConnectionLost):
    """The connection is lost, or did not answer in time.

    The server may have executed the command.
    """


class RedisRefusal(Exception):
    """The server refused a command, and changed nothing; the text is the server's."""


class RedisDenied(RightRefused, RedisRefusal):
    """The user may not run a command, or not on its key."""


class RedisWire:
    """One connection for several calls at a time, which the server runs in order.

    An overdue call ends it.
    """

    def __init__(self, connection: Connection, ended: "asyncio.Future[str]", user: str | None = None) -> None:
        self._connection = connection
        self._user = user or "default"
        self._sending = asyncio.Lock()
        self._last_reply: asyncio.Future[None] | None = None
        """Done when the reply of the newest call was read; None before the first call."""
        self.ended = ended
        """Why the connection ended; None until then."""

    async def call(
        self, script: RedisScript, *arguments: bytes | str | float, seconds: float = CALL_SECONDS
    ) -> Any:
        """Run a script; RedisLost, RedisDenied, or RedisRefusal."""
        try:
            try:
                return await self.command("EVALSHA", script.sha, 0, *arguments, seconds=seconds)
            except NoScriptError:
                # A restarted server has no scripts, and executed nothing.
                await self.command("SCRIPT", "LOAD", script.source)
                return await self.command("EVALSHA", script.sha, 0, *arguments, seconds=seconds)
        except ResponseError as error:
            if is_denied(str(error)):
                right, target = denied_in_script(str(error), script, arguments)
                raise RedisDenied(user=self._user, right=right, target=target) from None
            raise RedisRefusal(str(error)) from None

    def denied(self, right: str, target: str) -> RedisDenied:
        """Return the error for a command that a script could not run for this user."""
        return RedisDenied(user=self._user, right=right.lower(), target=target)

    async def command(self, *words: bytes | str | float, seconds: float = CALL_SECONDS) -> Any:
        """Run one command; RedisLost, RedisDenied, or the ResponseError of another refusal.

        The reply is what the server sent: bytes, numbers, lists of them, None. A cancelled caller does not cancel
        the command: a half-read reply would end the connection for all others.
        """
        running = asyncio.ensure_future(self._run(words, seconds))
        running.add_done_callback(_retrieve_error)
        return await asyncio.shield(running)

    async def _run(self, words: tuple[bytes | str | float, ...], seconds: float) -> Any:
        # In C: a batch of messages is one command of a thousand arguments, each a microsecond in redis-py's Python.
        packed = [hiredis.pack_command(words)]  # type: ignore[arg-type]  # its stub allows a tuple of one word alone
        read = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                async with self._sending:
                    if self.ended.done():
                        raise RedisLost(self.ended.result())
                    earlier, self._last_reply = self._last_reply, read
                    await self._connection.send_packed_command(packed, check_health=False)
                if earlier is not None:
                    # Never awaited directly: an overdue call would cancel it under the earlier one.
                    await asyncio.wait([earlier])
                if self.ended.done():
                    raise RedisLost(self.ended.result())
                return await self._connection.read_response()
        except ResponseError as error:
            if isinstance(error, NoPermissionError):
                right, target = denied_command(str(error), words)
                raise self.denied(right, target) from None
            raise
        except (RedisTimeoutError, TimeoutError):
            raise RedisLost(self.end(f"the server did not answer within {seconds:g} s")) from None
        except (RedisError, OSError) as error:
            raise RedisLost(self.end(describe(error))) from None
        finally:
            read.set_result(None)

    def end(self, why: str) -> str:
        """Mark the connection as ended; return the reason."""
        if not self.ended.done():
            self.ended.set_result(why)
        return self.ended.result()

    async def ping(self) -> None:
        """Ping a silent server until the connection ends."""
        with suppress(RedisLost):
            while not (await asyncio.wait([self.ended], timeout=PING_SECONDS))[0]:
                try:
                    await self.command("PING")
                except (ResponseError, RedisDenied) as error:
                    self.end(describe(error))

    async def close_wire(self) -> None:
        """Close it, in any state, within a moment."""
        self.end("the connection was closed")
        closing = asyncio.ensure_future(self._connection.disconnect())
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        if not closing.done():
            closing.cancel()
        elif not closing.cancelled():
            closing.exception()


def open_redis_wire(address: RedisAddress, name: str) -> AbstractAsyncContextManager[RedisWire]:
    """Connect to the first host that answers; RedisLost says why none does.

    ConfigurationError names a file that cannot be used.
    """
    address.check()
    return open_at_any(address.hosts, partial(open_redis_wire_at, address), name)


@asynccontextmanager
async def open_redis_wire_at(address: RedisAddress, host: Host, name: str) -> AsyncIterator[RedisWire]:
    """Connect to a host and sign in; leaving closes.

    RedisLost says why there is no connection.
    """
    try:
        connection = _connection(address, host, name)
    except ConfigurationError as error:
        # A file that existed at the start is being replaced, or was removed.
        raise RedisLost(str(error)) from None
    wire = RedisWire(connection, asyncio.get_running_loop().create_future(), address.username)
    try:
        try:
            await wire.command("PING", seconds=CONNECT_SECONDS)
        except RedisLost as lost:
            raise RedisLost(explained(str(lost), address.tls, tls_scheme="rediss://")) from None
        except ResponseError as error:
            raise RedisLost(describe(error)) from None
        async with background({"broker-ping": wire.ping()}):
            yield wire
    finally:
        await wire.close_wire()


def client_name(name: str) -> str:
    """Return the name in the form that CLIENT SETNAME takes."""
    return "".join(sign if sign.isalnum() else "-" for sign in name)


def describe(error: BaseException) -> str:
    """Return an error of redis-py for people: what happened, never a password."""
    text = str(error) or type(error).__name__
    return with_remedy(text.rstrip("."))


class _TlsConnection(SSLConnection):
    """A connection with our own TLS context, which all our clients use."""

    def __init__(self, *, tls: TlsFiles, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = tls.context()


def _connection(address: RedisAddress, host: Host, name: str) -> Connection:
    """Return a connection that connects when it is first used."""
    options: dict[str, Any] = {
        **address.arguments(host),
        "protocol": 2,  # the replies of scripts have one shape on all servers
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_read_size": READ_BYTES,
        "retry": Retry(NoBackoff(), 0),
        "client_name": client_name(name),
    }
    return Connection(**options) if address.tls is None else _TlsConnection(tls=address.tls, **options)


def _retrieve_error(running: "asyncio.Future[Any]") -> None:
    # Its caller may have been cancelled: asyncio would log an unretrieved error as a bug.
    if not running.cancelled():
        running.exception()
