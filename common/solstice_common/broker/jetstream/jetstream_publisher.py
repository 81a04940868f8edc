"""Publishes with PubAcks; one iteration of the event loop makes one write."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
import structlog
from nats.aio.msg import Msg

from solstice_common.broker.jetstream.jetstream_routes import RoutingTable
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsDenied, NatsLost
from solstice_common.broker.jetstream.nats_records import (
    HEADER_BYTES,
    MESSAGE_ID_HEADER,
    META_HEADER,
    NatsRecord,
    header_bytes,
)
from solstice_common.broker.links.missing_rights import PUBLISHING
from solstice_common.broker.links.publish_calls import GROUP_BYTES, PendingMessage, PublishCalls
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus
from solstice_common.telemetry.log_events import LogEvent

WINDOW: Final = 500
"""Unconfirmed messages on the wire.

A stream drops messages that arrive while 10,000 wait for it; with a smaller window, a lost link makes fewer
outcomes unknown.
"""
REMEMBERED: Final = 10_000
"""The number of messages whose repeat can be recognised."""
REOPEN_SECONDS: Final = 0.2
MISSING: Final = Published(
    PublishStatus.REJECTED, "its stream is missing, or JetStream is not available at the moment"
)

log = structlog.get_logger(__name__)


class Routes(Protocol):
    """The bindings, as the publisher needs them."""

    @property
    def table(self) -> RoutingTable: ...

    async def reread(self, connection: NatsConnection) -> None:
        """Read the table again: another process may have declared more. Raises NatsLost."""
        ...


class JetStreamPublisher:
    """A publisher over one link; `run` must be running."""

    def __init__(
        self, link: SupervisedLink[NatsConnection], routes: Routes, *, confirm_timeout_seconds: float
    ) -> None:
        self._link = link
        self._routes = routes
        self._timeout = confirm_timeout_seconds
        self._calls = PublishCalls[NatsRecord](
            timeout_seconds=confirm_timeout_seconds, why_overdue=self._why_overdue
        )
        self._unanswered = 0
        # Unlike that of any process within DEDUPE_SECONDS: 64 random bits. Each message has it.
        self._prefix = secrets.token_hex(8)
        self._number = 0
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def publish(self, records: Sequence[NatsRecord]) -> list[Published]:
        """Publish and wait for the outcomes, in order; never raises because of the broker."""
        return await self._calls.publish(records)

    async def run(self) -> None:
        """Send what is published, over one connection after another."""
        try:
            while True:
                await self._calls.wake.wait()
                connection = await self._link.connected()
                try:
                    await self._send(connection)
                except NatsDenied as refused:
                    self._calls.wake.set()
                    refused.log(PUBLISHING)
                    await asyncio.sleep(REOPEN_SECONDS)
                except NatsLost as lost:
                    # nats-py accepts nothing without a connection: unwritten messages wait for the next one.
                    self._calls.wake.set()
                    log.warning(LogEvent.PUBLISHER_INTERRUPTED, detail=str(lost))
                    await asyncio.sleep(REOPEN_SECONDS)
        finally:
            self._calls.close()

    async def _send(self, connection: NatsConnection) -> None:
        """Write the waiting messages in order, as many as the window allows."""
        self._calls.wake.clear()
        size = 0
        while self._calls.waiting and self._unanswered < WINDOW:
            pending = self._calls.waiting[0]
            if not pending.is_awaited:
                self._calls.waiting.popleft()
                continue
            queues = await self._route(connection, pending.message)
            size += await self._write(connection, pending, queues)
            self._calls.waiting.popleft()
            if size >= GROUP_BYTES:
                size = 0
                await asyncio.sleep(0)

    async def _route(self, connection: NatsConnection, record: NatsRecord) -> tuple[str, ...] | Published:
        route = self._routes.table.route(record.exchange, record.routing_key)
        if isinstance(route, Published):
            await self._routes.reread(connection)
            route = self._routes.table.route(record.exchange, record.routing_key)
        return route

    async def _write(
        self,
        connection: NatsConnection,
        pending: PendingMessage[NatsRecord],
        queues: tuple[str, ...] | Published,
    ) -> int:
        """Write one message to each of its queues; return its bytes."""
        if isinstance(queues, Published):
            pending.settle(queues)
            return 0
        record = pending.message
        self._number += 1
        is_in_its_header = record.repeat_key is not None and not record.is_repeat
        try:
            header = record.header(None if is_in_its_header else f"{self._prefix}-{self._number}")
        except (TypeError, ValueError) as error:
            pending.settle(Published(PublishStatus.REJECTED, f"NATS cannot carry it: {error}"))
            return 0
        size = header_bytes(header) + len(MESSAGE_ID_HEADER) + 64
        if why := too_large(size, len(record.body), connection.client.max_payload):
            # The server would close the connection, and again at every retry.
            pending.settle(Published(PublishStatus.REJECTED, why))
            return 0
        outcomes: list[Published] = []
        for queue in queues:
            headers = {META_HEADER: header}
            if record.repeat_key is not None:
                headers[MESSAGE_ID_HEADER] = self._message_id(
                    queue, record.repeat_key, repeat=record.is_repeat
                )
            answer = await connection.ask(queue, record.body, headers)
            self._unanswered += 1
            pending.call.answers.append(answer)
            answer.add_done_callback(partial(self._answered, pending, outcomes, len(queues)))
        return size + len(record.body)

    def _message_id(self, queue: str, key: str, *, repeat: bool) -> str:
        """Return the id by which the server recognises a repeat.

        The id tells apart equal messages: a replayed dead letter has the key of the refused message, and must
        arrive.
        """
        known = self._ids.pop((queue, key), None)
        chosen = known if repeat and known is not None else f"{self._prefix}-{self._number}"
        self._ids[queue, key] = chosen
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)
        return chosen

    def _answered(
        self,
        pending: PendingMessage[NatsRecord],
        outcomes: list[Published],
        count: int,
        answer: "asyncio.Future[Msg]",
    ) -> None:
        self._unanswered -= 1
        if self._calls.waiting:
            self._calls.wake.set()
        outcomes.append(_outcome_of(answer))
        if len(outcomes) == count:
            pending.settle(together(outcomes))

    def _why_overdue(self) -> str:
        if self._link.connection is None:
            return f"not connected within {self._timeout:g} s: {self._link.detail}"
        return f"not confirmed within {self._timeout:g} s"


def together(outcomes: Sequence[Published]) -> Published:
    """Return the outcome of a message that went to several queues. Pure."""
    failed = [outcome for outcome in outcomes if not outcome.confirmed]
    if not failed:
        return outcomes[0]
    if len(failed) == len(outcomes) and all(each.status is PublishStatus.REJECTED for each in failed):
        return failed[0]
    # Some queue has its copy of the message, or may have it.
    return Published(PublishStatus.UNKNOWN, failed[0].detail)


def read_answer(headers: dict[str, str] | None, data: bytes) -> Published:
    """Return what a server's answer to a publish means. Pure."""
    if (headers or {}).get("Status") == "503":
        return MISSING
    try:
        answer = msgspec.json.decode(data)
        error = answer.get("error")
        is_ack = error is None and isinstance(answer["seq"], int)
    except (AttributeError, KeyError, ValueError):
        is_ack, error = False, None
    if is_ack:
        return CONFIRMED
    if isinstance(error, dict):
        return Published(
            PublishStatus.REJECTED,
            f"{error.get('description', 'the server gave no reason')} ({error.get('err_code')})",
        )
    return Published(PublishStatus.UNKNOWN, f"the server's answer cannot be read: {data[:100]!r}")


def _outcome_of(answer: "asyncio.Future[Msg]") -> Published:
    if answer.cancelled():
        return Published(PublishStatus.UNKNOWN, "the connection to the broker was closed")
    error = answer.exception()
    if isinstance(error, NatsDenied):
        error.log(PUBLISHING)
        return Published(PublishStatus.REJECTED, str(error), lacks_right=True)
    if error is not None:
        return Published(PublishStatus.UNKNOWN, str(error))
    msg = answer.result()
    return read_answer(msg.headers, msg.data)


def too_large(headers: int, body: int, limit: int) -> str:
    if headers > HEADER_BYTES:
        return f"its headers take {headers} bytes, JetStream carries {HEADER_BYTES}"
    if headers + body > limit:
        return f"it takes {headers + body} bytes, the server carries {limit}: raise its max_payload"
    return ""
