"""Gathers what callers publish, and gives each caller the outcomes of its messages."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from solstice_common.broker.protocol import Published, PublishStatus

T = TypeVar("T")

GROUP_BYTES: Final = 1 << 20
"""The most bytes of one write; a single message may exceed them."""


# Structs, since a dataclass takes three times as long to make, twice for each message on the hot path.
class PublishCall(msgspec.Struct, eq=False):
    """One call of `publish`, waiting for the last of its outcomes."""

    outcomes: list[Published | None]
    missing: int
    done: "asyncio.Future[None]"
    answers: list["asyncio.Future[Any]"] = msgspec.field(default_factory=list)
    """Answers of the broker that it awaits; they are cancelled with it."""

    def settle(self, index: int, outcome: Published) -> None:
        """Note the outcome of one message, unless it has one."""
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self.missing -= 1
            if not self.missing:
                self.end()

    def end(self) -> None:
        """Let the caller go on, with the outcomes that are there."""
        if not self.done.done():
            self.done.set_result(None)


class PendingMessage(msgspec.Struct, Generic[T], eq=False):
    """One message that has no outcome yet."""

    call: PublishCall
    index: int
    message: T

    def settle(self, outcome: Published) -> None:
        """Note its outcome, unless it has one."""
        self.call.settle(self.index, outcome)

    @property
    def is_awaited(self) -> bool:
        """Whether a caller still waits for it."""
        return not self.call.done.done()


class PublishCalls(Generic[T]):
    """The messages that wait to be written, in order.

    `why_overdue` gives the reason when a message has no outcome in time.
    """

    def __init__(self, *, timeout_seconds: float, why_overdue: Callable[[], str]) -> None:
        self.waiting: deque[PendingMessage[T]] = deque()
        self.wake = asyncio.Event()
        """Set when there may be something to write."""
        self._timeout = timeout_seconds
        self._why_overdue = why_overdue
        self._overdue_at: dict[PublishCall, float] = {}
        """The calls without all of their outcomes, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    async def publish(self, messages: Sequence[T]) -> list[Published]:
        """Have messages written and wait for the outcomes, in order."""
        if not messages:
            return []
        call = PublishCall([None] * len(messages), len(messages), self._loop.create_future())
        for index, message in enumerate(messages):
            self.waiting.append(PendingMessage(call, index, message))
        self.wake.set()
        # One timer for all: a timer for each call costs as much as everything else that happens to it here.
        self._overdue_at[call] = overdue_at = self._loop.time() + self._timeout
        if self._timer is None:
            self._timer = self._loop.call_at(overdue_at, self._end_overdue)
        try:
            await call.done
        finally:
            del self._overdue_at[call]
            # Unsent messages are never sent: their futures are done, or cancelled with this task. Messages
            # without an answer free their places: a server under pressure drops messages silently.
            call.done.cancel()
            for answer in call.answers:
                answer.cancel()
        if not call.missing:
            return cast("list[Published]", call.outcomes)
        overdue = Published(PublishStatus.UNKNOWN, self._why_overdue())
        return [outcome or overdue for outcome in call.outcomes]

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Asked for once: before Python 3.12 each answer costs a system call.
        return asyncio.get_running_loop()

    def _end_overdue(self) -> None:
        """End the calls whose time is over, and wait for the next one."""
        self._timer = None
        now = self._loop.time()
        for call, overdue_at in self._overdue_at.items():
            if overdue_at > now:
                self._timer = self._loop.call_at(overdue_at, self._end_overdue)
                break
            call.end()

    def close(self) -> None:
        """Settle the unwritten messages."""
        closed = Published(PublishStatus.UNKNOWN, "the connection to the broker was closed")
        for pending in self.waiting:
            pending.settle(closed)
        self.waiting.clear()
