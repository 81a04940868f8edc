"""Gathers what callers publish, and gives each caller the outcomes of its messages."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from solstice_common.broker.protocol import Published, PublishStatus

T = TypeVar("T")

GROUP_BYTES: Final = 1 << 20
"""The most bytes of one write; a single message may exceed them."""


@dataclass(slots=True, eq=False)
class PublishCall:
    """One call of `publish`, waiting for the last of its outcomes."""

    outcomes: list[Published | None]
    missing: int
    done: "asyncio.Future[None]"
    answers: list["asyncio.Future[Any]"] = field(default_factory=list)
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


@dataclass(slots=True, eq=False)
class PendingMessage(Generic[T]):
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

    async def publish(self, messages: Sequence[T]) -> list[Published]:
        """Have messages written and wait for the outcomes, in order."""
        if not messages:
            return []
        loop = asyncio.get_running_loop()
        call = PublishCall([None] * len(messages), len(messages), loop.create_future())
        for index, message in enumerate(messages):
            self.waiting.append(PendingMessage(call, index, message))
        self.wake.set()
        # A bare timer costs a third of what `asyncio.timeout` does, once per message on the hot path.
        timer = loop.call_later(self._timeout, call.end)
        try:
            await call.done
        finally:
            timer.cancel()
            # Unsent messages are never sent: their futures are done, or cancelled with this task. Messages
            # without an answer free their places: a server under pressure drops messages silently.
            call.done.cancel()
            for answer in call.answers:
                answer.cancel()
        if not call.missing:
            return [outcome for outcome in call.outcomes if outcome is not None]
        overdue = Published(PublishStatus.UNKNOWN, self._why_overdue())
        return [outcome or overdue for outcome in call.outcomes]

    def close(self) -> None:
        """Settle the unwritten messages."""
        closed = Published(PublishStatus.UNKNOWN, "the connection to the broker was closed")
        for pending in self.waiting:
            pending.settle(closed)
        self.waiting.clear()
