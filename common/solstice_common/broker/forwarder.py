"""Publishes durable rows to the broker, in order, in groups, with confirms."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.protocol import (
    Broker,
    HeaderValue,
    Message,
    Published,
    PublishStatus,
)
from solstice_common.errors import BrokerError, BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.topology import Topology

Row = TypeVar("Row")

GROUP: Final = 256
"""The most messages in flight.

Two hundred keep a broker busy; more would only repeat more after a crash.
"""
STREAM_GROUP: Final = 8
"""A group of so many rows is a part of a stream: the next rows linger STREAM_LINGER times as long.

What a group costs hardly depends on its size.
"""
STREAM_LINGER: Final = 4
CONNECT_SECONDS: Final = 1.0
"""Seconds of one wait for the connection.

While the broker is down, `finish` takes effect within that time.
"""
LEAST_RETRY_SECONDS: Final = 0.01
"""The shortest pause before a retry.

Jitter may be zero, and a broker that refuses at once must not be called in a tight loop.
"""
FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 15.0
STORE_FAILURES: Final = 3
"""The most failures in a row that count for the backoff of reading.

The store is local, so reading it every other second is cheap.
"""


class Backlog(Protocol[Row]):
    """The rows that wait to be forwarded, and their outcomes. Its methods raise only StoreUnavailable."""

    def lead(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Return the block in which this process forwards; yields an event for new rows.

        Entering may wait until no other process forwards.
        """
        ...

    async def next_group(self, limit: int) -> Sequence[Row]:
        """Return the next rows to publish, in order; rows that are not marked come again."""
        ...

    def message_of(self, row: Row) -> Message: ...

    def answered(self, group: Sequence[Row], outcomes: Sequence[Published]) -> Sequence[int]:
        """Handle the broker's outcomes, one per row; return the ids that are done."""
        ...

    async def mark(self, row_ids: Sequence[int]) -> None:
        """Mark these rows as done.

        It is called again until it succeeds, before anything else is published.
        """
        ...

    async def ended(self, group: Sequence[Row], failed: Sequence[tuple[Row, Published]]) -> None:
        """Called once the confirmed rows are marked.

        `failed` are the rows of the group that were not confirmed, often none.
        """
        ...

    def interrupted(self, detail: str) -> None:
        """Called once when publishing stops, until `resumed`."""
        ...

    def resumed(self, paused_seconds: float) -> None: ...


def reason_of(outcome: Published) -> str:
    """Return the reason, in words, why a message is not with the broker."""
    return f"{outcome.status.value}: {outcome.detail}" if outcome.detail else outcome.status.value


class _Result(Enum):
    """The result of one step."""

    IDLE = "nothing waits"
    FORWARDED = "a group is with the broker"
    STREAMED = "a group of several is with the broker, and more are to be expected"
    FILLED = "a large group is with the broker"
    FAILED = "some of a group are not"


class Forwarder(Generic[Row]):
    """One publisher.

    `run` publishes until cancelled, or, once `finish` was called, until nothing more can be done.

    `noun` says what a row is, for `problem`. The forwarder polls the backlog after `poll_seconds`, in
    case a notification was lost. Rows may wait `linger_seconds` for others, and longer in a stream of them, so that all
    go in one group. With `declare_early`, it declares the topology even while no rows wait.
    """

    def __init__(
        self,
        backlog: Backlog[Row],
        *,
        noun: str,
        broker: Broker,
        topology: Topology,
        rng: random.Random,
        poll_seconds: float,
        linger_seconds: float = 0.0,
        declare_early: bool = False,
    ) -> None:
        self._backlog = backlog
        self._noun = noun
        self._broker = broker
        self._topology = topology
        self._rng = rng
        self._poll_seconds, self._linger_seconds = poll_seconds, linger_seconds
        self._declare_early = declare_early
        self._wake = asyncio.Event()
        self._finishing = False
        self._declared = False
        self._failures = 0
        self._interrupted_since: float | None = None
        self._unmarked: Sequence[int] = ()
        self._uncertain: set[HeaderValue] = set()
        """Idempotency keys of messages whose publishing ended as unknown."""
        self.problem: str | None = None
        """Why nothing can be published now; None when publishing works."""
        self.is_leader = False
        """Whether this process is the leader, which forwards; until then there is nothing to finish."""

    def finish(self) -> None:
        """Publish the waiting rows as far as possible, then let `run` return."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> None:
        async with self._backlog.lead() as self._wake:
            self.is_leader = True
            while True:
                self._wake.clear()
                try:
                    step = await self._step()
                except (BrokerError, StoreUnavailable) as error:
                    self._interrupt(error)
                    step = _Result.FAILED
                if self._finishing and step in {_Result.IDLE, _Result.FAILED}:
                    return
                if step is _Result.IDLE:
                    await self._woken(self._poll_seconds)
                elif step is _Result.FAILED:
                    await self._pause(self._retry_seconds())
                if step is not _Result.FILLED and self._linger_seconds:
                    await asyncio.sleep(
                        self._linger_seconds * (STREAM_LINGER if step is _Result.STREAMED else 1)
                    )

    async def _step(self) -> _Result:
        # These are confirmed but not marked in the store yet: mark them first, or they would be published
        # again.
        await self._mark()
        group = await self._backlog.next_group(GROUP)
        if group or (self._declare_early and not self._declared):
            await self._prepare_broker()
        return await self._publish(group) if group else _Result.IDLE

    def _repeat_of(self, message: Message) -> Message:
        """Return the message, marked as a repeat when the previous attempt's outcome is unknown."""
        if message.headers.get(IDEMPOTENCY_HEADER) in self._uncertain:
            return msgspec.structs.replace(message, repeat=True)
        return message

    async def _mark(self) -> None:
        if self._unmarked:
            await self._backlog.mark(self._unmarked)
            self._unmarked = ()

    async def _prepare_broker(self) -> None:
        """Wait for a connection and declare the topology; BrokerError when that fails."""
        await self._broker.ready(CONNECT_SECONDS)
        if blocked := self._broker.health.blocked:
            raise BrokerUnavailable(self._broker.url, f"it takes no publishes at the moment: {blocked}")
        if not self._declared:
            await self._broker.declare(self._topology)
            self._declared = True
        if self._interrupted_since is not None:
            self._backlog.resumed(round(time.monotonic() - self._interrupted_since, 3))
            # Publishing works again: the next failure starts from a short wait.
            self._failures = 0
        self._interrupted_since = self.problem = None

    async def _publish(self, group: Sequence[Row]) -> _Result:
        messages = [self._repeat_of(self._backlog.message_of(row)) for row in group]
        outcomes = await self._broker.publish(messages)
        for message, outcome in zip(messages, outcomes, strict=True):
            if (key := message.headers.get(IDEMPOTENCY_HEADER)) is None:
                continue
            if outcome.status is PublishStatus.UNKNOWN:
                self._uncertain.add(key)
            elif outcome.confirmed:
                self._uncertain.discard(key)
        self._unmarked = self._backlog.answered(group, outcomes)
        await self._mark()
        failed = [
            (row, outcome) for row, outcome in zip(group, outcomes, strict=True) if not outcome.confirmed
        ]
        if failed:
            # A broker that lost its queues needs them declared again.
            self._declared = False
            self._failures += 1
            self.problem = f"the broker did not take a {self._noun} ({reason_of(failed[0][1])})"
        else:
            self._failures = 0
        await self._backlog.ended(group, failed)
        if failed:
            return _Result.FAILED
        if 2 * len(group) > GROUP:
            return _Result.FILLED
        return _Result.STREAMED if len(group) >= STREAM_GROUP else _Result.FORWARDED

    def _interrupt(self, error: BrokerError | StoreUnavailable) -> None:
        """Report once that publishing has stopped."""
        self.problem = str(error)
        self._declared = False
        # The wait for a connection was long already: retry soon, so that its return is noticed quickly.
        self._failures = 1 if isinstance(error, BrokerUnavailable) else self._failures + 1
        if isinstance(error, StoreUnavailable):
            self._failures = min(self._failures, STORE_FAILURES)
        if self._interrupted_since is None:
            self._interrupted_since = time.monotonic()
            self._backlog.interrupted(str(error))

    def _retry_seconds(self) -> float:
        before = max(self._failures - 1, 0)
        drawn = backoff_seconds(
            before, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=LAST_RETRY_SECONDS
        )
        return max(LEAST_RETRY_SECONDS, drawn)

    async def _pause(self, seconds: float) -> None:
        """Wait; `finish` ends it early, new rows do not."""
        deadline = time.monotonic() + seconds
        while not self._finishing and (left := deadline - time.monotonic()) > 0:
            self._wake.clear()
            await self._woken(left)

    async def _woken(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
