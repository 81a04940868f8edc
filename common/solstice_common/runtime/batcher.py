"""Handles many tasks' calls in one turn of the event loop as one batch."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Batcher(Generic[A, R]):
    """Call it with an item to get its answer.

    All items of one turn of the event loop are handled in one call. `handle` begins the work on some items, in the
    order they came, and returns the future of their answers, in the same order; every caller of the batch gets its
    exception. A cancelled caller cancels no other.
    """

    def __init__(self, handle: Callable[[Sequence[A]], "asyncio.Future[Sequence[R]]"]) -> None:
        self._handle = handle
        self._batch: _Batch[A, R] | None = None

    async def __call__(self, item: A) -> R:
        return await self.submit(item)

    def submit(self, item: A) -> "asyncio.Future[R]":
        """The same, for a caller that does not wait for it."""
        loop = asyncio.get_running_loop()
        if self._batch is None:
            self._batch = _Batch()
            loop.call_soon(self._end_batch)
        answer: asyncio.Future[R] = loop.create_future()
        self._batch.items.append(item)
        self._batch.callers.append(answer)
        return answer

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        try:
            handled = self._handle(batch.items)
        except Exception as error:  # noqa: BLE001  the callers get it
            batch.fail(error)
        else:
            handled.add_done_callback(batch.end)


@dataclass(slots=True, eq=False)
class _Batch(Generic[A, R]):
    items: list[A] = field(default_factory=list)
    callers: "list[asyncio.Future[R]]" = field(default_factory=list)

    def end(self, handled: "asyncio.Future[Sequence[R]]") -> None:
        if handled.cancelled():
            self.fail(RuntimeError("the work of this turn was cancelled"))
        elif (error := handled.exception()) is not None:
            self.fail(error)
        else:
            for caller, answer in zip(self.callers, handled.result(), strict=True):
                if not caller.done():
                    caller.set_result(answer)

    def fail(self, error: BaseException) -> None:
        for caller in self.callers:
            if not caller.done():
                caller.set_exception(error)
