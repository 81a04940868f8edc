"""Publishes with confirms; one iteration of the event loop makes one write."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pamqp.frame
import structlog
from pamqp import commands as spec

from solstice_common.broker.links.missing_rights import PUBLISHING
from solstice_common.broker.links.publish_calls import GROUP_BYTES, PendingMessage, PublishCalls
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus
from solstice_common.broker.rabbitmq.frames import BODY, HEADER, UnreadHeader, content_header, frame
from solstice_common.broker.rabbitmq.link_errors import (
    TO_PUBLISH,
    TOO_LARGE,
    AccessRefused,
    LinkLost,
    lost_link,
)
from solstice_common.broker.rabbitmq.properties import Encode
from solstice_common.broker.rabbitmq.wire import Wire, WireChannel
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.values.value import Value

WINDOW: Final = 500
"""The most unconfirmed messages on the wire.

More gains nothing; with fewer, a lost link makes fewer outcomes unknown.
"""
ROUTES: Final = 64
"""Encoded `basic.publish` frames that are kept for reuse, by exchange and key."""
REOPEN_SECONDS: Final = 0.2
NACKED: Final = Published(PublishStatus.REJECTED, "the broker refused it: a queue is full or not available")

log = structlog.get_logger(__name__)


class Envelope(Value, frozen=True, kw_only=True):
    """A message as it is written to the wire, under its own message id."""

    exchange: str
    routing_key: str
    properties: Encode
    body: bytes


@dataclass(eq=False)
class Unconfirmed:
    """The messages on one channel that the broker has not confirmed yet.

    It is the user of that channel.
    """

    on_capacity: Callable[[], None]
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)
    _by_tag: dict[int, PendingMessage[Envelope]] = field(default_factory=dict)
    _returned: dict[int, str] = field(default_factory=dict)
    """Why returned messages have no queue, by tag; a confirm of each follows."""
    _last: int = 0
    _oldest: int = 1
    _proven: set[str] = field(default_factory=set)
    """Exchanges that accepted a message of this channel, so they existed."""

    def __len__(self) -> int:
        return len(self._by_tag)

    def next_message_id(self) -> str:
        """Return the id for the next message: never used before; it contains the delivery tag."""
        return f"{self.prefix}-{self._last + 1}"

    def add(self, pending: PendingMessage[Envelope]) -> None:
        """Add a message that is written now; the broker numbers messages in this order."""
        self._last += 1
        self._by_tag[self._last] = pending

    def delivered(self, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes) -> None:
        """Nothing is consumed on this channel."""

    def returned(self, frame: spec.Basic.Return, header: UnreadHeader) -> None:
        """Note that no queue is bound for a message; a confirm follows."""
        tag = str(header.read().message_id or "").rpartition("-")[2]
        if tag.isdecimal() and int(tag) in self._by_tag:
            self._returned[int(tag)] = str(frame.reply_text)

    def confirmed(self, frame: spec.Basic.Ack | spec.Basic.Nack) -> None:
        """Settle one message, or all up to one, as the broker has answered."""
        acked, tag = isinstance(frame, spec.Basic.Ack), frame.delivery_tag or 0
        for each in range(self._oldest, tag + 1) if frame.multiple else (tag,):
            pending = self._by_tag.pop(each, None)
            if pending is None:
                continue
            returned = self._returned.pop(each, None) if self._returned else None
            if not acked:
                pending.settle(NACKED)
            elif returned is not None:
                pending.settle(Published(PublishStatus.UNROUTABLE, returned))
            else:
                self._proven.add(pending.message.exchange)
                pending.settle(CONFIRMED)
        while self._oldest <= self._last and self._oldest not in self._by_tag:
            self._oldest += 1
        self.on_capacity()

    def lost(self, why: str) -> None:
        """End all open publishes: the channel is lost.

        Messages that the broker gives as the reason are rejected; all others may have arrived.
        """
        pending = list(self._by_tag.values())
        self._by_tag.clear()
        self._returned.clear()
        self._oldest = self._last + 1
        blamed, lost = set(self._blamed(pending, why)), lost_link(why, TO_PUBLISH)
        rejected = Published(PublishStatus.REJECTED, str(lost), lacks_right=isinstance(lost, AccessRefused))
        unknown = Published(PublishStatus.UNKNOWN, why)
        for each in pending:
            each.settle(rejected if each in blamed else unknown)

    def _blamed(
        self, pending: Sequence[PendingMessage[Envelope]], why: str
    ) -> Iterable[PendingMessage[Envelope]]:
        """Return the messages that the broker certainly lacks, by its reason for closing the channel."""
        if limit := TOO_LARGE.search(why):
            return [each for each in pending if len(each.message.body) > int(limit[1])]
        if named := re.search(r"exchange '([^']*)'", why):
            to_it = [each for each in pending if each.message.exchange == named[1]]
            # An exchange that took messages before was deleted meanwhile, and may have taken all but the last.
            return to_it[-1:] if named[1] in self._proven else to_it
        return []


class Publisher:
    """A publisher over one link; `run` must be running."""

    def __init__(self, link: SupervisedLink[Wire], *, confirm_timeout_seconds: float) -> None:
        self._link = link
        self._timeout = confirm_timeout_seconds
        self._calls = PublishCalls[Envelope](
            timeout_seconds=confirm_timeout_seconds, why_overdue=self._why_overdue
        )
        self._prefixes: dict[tuple[int, str, str], bytes] = {}

    def publish(self, envelopes: Sequence[Envelope]) -> Awaitable[list[Published]]:
        """Publish and wait for the outcomes, in order; never raises because of the broker."""
        return self._calls.publish(envelopes)

    async def run(self) -> None:
        """Send what is published, over one channel after another."""
        try:
            while True:
                wire = await self._link.connected()
                try:
                    await self._one_channel(wire)
                except AccessRefused as refused:
                    refused.log(PUBLISHING)
                    await asyncio.sleep(REOPEN_SECONDS)
                except LinkLost as lost:
                    log.warning(LogEvent.PUBLISHER_INTERRUPTED, detail=str(lost))
                    await asyncio.sleep(REOPEN_SECONDS)
        finally:
            self._calls.close()

    async def _one_channel(self, wire: Wire) -> None:
        unconfirmed = Unconfirmed(self._calls.wake.set)
        channel = await wire.open_channel(unconfirmed, publisher_confirms=True)
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(wire, channel, unconfirmed), name="broker-send")
                await asyncio.wait([channel.ended])
                sending.cancel()
            raise lost_link(channel.ended.result(), TO_PUBLISH)
        finally:
            why = (
                channel.ended.result() if channel.ended.done() else "the connection to the broker was closed"
            )
            unconfirmed.lost(why)

    async def _send(self, wire: Wire, channel: WireChannel, unconfirmed: Unconfirmed) -> None:
        self._calls.wake.set()
        while not channel.ended.done():
            await self._calls.wake.wait()
            self._calls.wake.clear()
            # A blocked broker reads nothing: unwritten messages can still be cancelled safely.
            await wire.unblocked.wait()
            payload = self._next_group(channel, unconfirmed)
            if payload:
                if self._calls.waiting:
                    self._calls.wake.set()
                try:
                    await channel.write(payload)
                except LinkLost:
                    return

    def _next_group(self, channel: WireChannel, unconfirmed: Unconfirmed) -> bytes:
        """Return the frames of as many waiting messages as the wire may hold, in order."""
        frames: list[bytes] = []
        size = 0
        waiting = self._calls.waiting
        while waiting and len(unconfirmed) < WINDOW and size < GROUP_BYTES:
            pending = waiting.popleft()
            if not pending.is_awaited:
                continue
            try:
                encoded = self._encode(pending.message, channel, unconfirmed.next_message_id())
            except Exception as error:  # noqa: BLE001  one strange message must not end the publishing of all others
                pending.settle(Published(PublishStatus.REJECTED, f"AMQP cannot carry it: {error}"))
                continue
            unconfirmed.add(pending)
            frames.append(encoded)
            size += len(encoded)
        return b"".join(frames)

    def _encode(self, envelope: Envelope, channel: WireChannel, message_id: str) -> bytes:
        number, body = channel.number, envelope.body
        header = content_header(envelope.properties(message_id), len(body))
        step = channel.max_content_size
        if len(header) > step:
            # The broker answers a frame that is too large by closing the connection, again at every retry.
            raise ValueError(f"its headers take {len(header)} bytes, one frame to this broker carries {step}")
        return b"".join(
            [
                self._method(envelope, number),
                frame(HEADER, number, header),
                *(frame(BODY, number, body[start : start + step]) for start in range(0, len(body), step)),
            ]
        )

    def _method(self, envelope: Envelope, number: int) -> bytes:
        key = (number, envelope.exchange, envelope.routing_key)
        method = self._prefixes.get(key)
        if method is None:
            publish = spec.Basic.Publish(
                exchange=envelope.exchange, routing_key=envelope.routing_key, mandatory=True
            )
            if len(self._prefixes) >= ROUTES:
                self._prefixes.clear()
            method = self._prefixes[key] = pamqp.frame.marshal(publish, number)
        return method

    def _why_overdue(self) -> str:
        wire = self._link.connection
        if wire is None:
            return f"not connected within {self._timeout:g} s: {self._link.detail}"
        if wire.blocked is not None:
            return f"not confirmed within {self._timeout:g} s: the broker is blocked ({wire.blocked})"
        return f"not confirmed within {self._timeout:g} s"
