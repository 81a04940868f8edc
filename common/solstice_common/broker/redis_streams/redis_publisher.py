"""Publishes to Redis in script calls of many messages each.

Two calls are under way at a time: while the server stores one, we prepare the other.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import Final

import structlog

from solstice_common.broker.links.missing_rights import PUBLISHING
from solstice_common.broker.links.publish_calls import GROUP_BYTES, PendingMessage, PublishCalls
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import CONFIRMED, Message, Published, PublishStatus
from solstice_common.broker.redis_streams.redis_scripts import DEDUPE_SECONDS, PUBLISH
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, RedisRefusal, RedisWire
from solstice_common.broker.redis_streams.stream_entries import NewStreamEntry, entry_of
from solstice_common.telemetry.log_events import LogEvent

CALLS_UNDER_WAY: Final = 2
ENOUGH_MESSAGES: Final = 100
"""A script call with so many messages takes those of no further caller: more would not make it cheaper."""
MOST_MESSAGES: Final = 500
"""The most messages of one script call; those of one caller stay together up to that."""

_ROUTE: Final = attrgetter("exchange", "routing_key", "repeat")

log = structlog.get_logger(__name__)


class RedisPublisher:
    """A publisher over one link; `run` must be running.

    `refusal` says why the server may get no messages at all, None where it may; `on_rejected` is called with
    the reason of each rejected message.
    """

    def __init__(
        self,
        link: SupervisedLink[RedisWire],
        *,
        prefix: str,
        confirm_timeout_seconds: float,
        refusal: Callable[[], str | None],
        on_rejected: Callable[[str], None],
    ) -> None:
        self._link = link
        self._prefix = prefix
        self._timeout = confirm_timeout_seconds
        self._refusal = refusal
        self._on_rejected = on_rejected
        self._id_prefix = uuid.uuid4().hex
        self._count = count(1)
        self._calls = PublishCalls[NewStreamEntry](
            timeout_seconds=confirm_timeout_seconds, why_overdue=self._why_overdue
        )

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        """Publish and wait for the outcomes, in order; never raises because of the broker."""
        entries = [entry_of(message, f"{self._id_prefix}-{next(self._count)}") for message in messages]
        sendable = [entry for entry in entries if not isinstance(entry, Published)]
        outcomes = await self._calls.publish(sendable)
        if len(outcomes) == len(entries):
            return outcomes
        sent = iter(outcomes)
        return [entry if isinstance(entry, Published) else next(sent) for entry in entries]

    async def run(self) -> None:
        """Send what is published, group after group."""
        free = asyncio.Semaphore(CALLS_UNDER_WAY)
        try:
            async with asyncio.TaskGroup() as sending:
                while True:
                    await self._calls.wake.wait()
                    self._calls.wake.clear()
                    await self._link.connected()
                    await free.acquire()
                    while group := next_group(self._calls.waiting):
                        sending.create_task(self._send(group)).add_done_callback(lambda _: free.release())
                        await free.acquire()
                    free.release()
        finally:
            self._calls.close()

    async def _send(self, group: Sequence[PendingMessage[NewStreamEntry]]) -> None:
        try:
            outcomes = await self._stored([pending.message for pending in group])
        except BaseException:
            # They have no outcome yet, and get one when the publisher closes.
            self._calls.waiting.extendleft(reversed(group))
            raise
        for outcome in outcomes:
            if outcome.status is PublishStatus.REJECTED:
                self._on_rejected(outcome.detail)
                break
        for pending, outcome in zip(group, outcomes, strict=True):
            pending.settle(outcome)

    async def _stored(self, entries: Sequence[NewStreamEntry]) -> Sequence[Published]:
        wire = await self._link.connected()
        if refusal := self._refusal():
            return [Published(PublishStatus.REJECTED, refusal)] * len(entries)
        arguments: list[bytes | str] = [self._prefix, str(DEDUPE_SECONDS * 1000)]
        for (exchange, routing_key, repeat), run in groupby(entries, _ROUTE):
            alike = list(run)
            arguments += (exchange, routing_key, "1" if repeat else "", str(len(alike)))
            for entry in alike:
                arguments += (entry.key, entry.meta, entry.body)
        try:
            answers = await wire.call(PUBLISH, *arguments, seconds=self._timeout)
        except RedisLost as lost:
            log.warning(LogEvent.PUBLISHER_INTERRUPTED, detail=str(lost))
            return [Published(PublishStatus.UNKNOWN, str(lost))] * len(entries)
        except RedisDenied as refused:
            return [_denied(refused)] * len(entries)
        except RedisRefusal as refused:
            return [Published(PublishStatus.REJECTED, str(refused))] * len(entries)
        if answers == []:
            return [CONFIRMED] * len(entries)
        if len(answers) > len(entries):
            _refusal_in(wire, answers.pop()).log(PUBLISHING)
        return [_outcome(wire, entry, answer) for entry, answer in zip(entries, answers, strict=True)]

    def _why_overdue(self) -> str:
        if self._link.connection is None:
            return f"not connected within {self._timeout:g} s: {self._link.detail}"
        return f"not confirmed within {self._timeout:g} s"


def next_group(waiting: deque[PendingMessage[NewStreamEntry]]) -> list[PendingMessage[NewStreamEntry]]:
    """Take the messages of one script call, in order; those of one caller stay together."""
    group: list[PendingMessage[NewStreamEntry]] = []
    size = 0
    while waiting and len(group) < MOST_MESSAGES and size < GROUP_BYTES:
        call = waiting[0].call
        if group and call is not group[-1].call and _is_enough(len(group), len(call.outcomes)):
            break
        pending = waiting.popleft()
        if pending.is_awaited:
            group.append(pending)
            size += pending.message.size
    return group


def _is_enough(messages: int, of_next_call: int) -> bool:
    """Whether a group of so many messages goes without those of the next caller."""
    return messages >= ENOUGH_MESSAGES or messages + of_next_call > MOST_MESSAGES


def _refusal_in(wire: RedisWire, answer: bytes) -> RedisDenied:
    """Return the command that the user may not send, and its key."""
    right, _, key = answer.decode("utf-8", "replace").partition(" ")
    return wire.denied(right, f"key {key}")


def _denied(refused: RedisDenied) -> Published:
    refused.log(PUBLISHING)
    return Published(PublishStatus.REJECTED, str(refused), lacks_right=True)


def _outcome(wire: RedisWire, entry: NewStreamEntry, answer: bytes) -> Published:
    if not answer:
        return CONFIRMED
    if answer.startswith(b"denied "):
        return _denied(_refusal_in(wire, answer.removeprefix(b"denied ")))
    what, _, detail = answer.decode("utf-8", "replace").partition(" ")
    match what:
        case "unroutable":
            return Published(
                PublishStatus.UNROUTABLE,
                f"no queue is bound to the exchange {entry.exchange!r} for the key {entry.routing_key!r}",
            )
        case "no":
            return Published(PublishStatus.REJECTED, f"there is no exchange {entry.exchange!r}")
        case "full":
            return Published(PublishStatus.REJECTED, f"the queue {detail!r} is full")
        case _:
            return Published(PublishStatus.REJECTED, detail)
