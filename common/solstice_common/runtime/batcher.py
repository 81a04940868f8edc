"""Handles the items of many callers in batches.

Items that arrive during one batch form the next.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from solstice_common.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")

UNLIMITED: Final = sys.maxsize
MOST_ITEMS: Final = 256
END_SECONDS: Final = 2.0

_Waiting = tuple[A, asyncio.Future[R]]


class Batcher(Generic[A, R]):
    """Call it with an item, and await its answer.

    `handle` gets the items of a batch in the order they came, and returns their answers in that order. At
    most `at_once` batches are under way, each of at most `most` items; with `most` UNLIMITED, a batch has all
    items of one iteration of the event loop. `name` names its tasks, and the unavailable store in
    StoreUnavailable.

    After an error each item of the batch is handled alone, so that an item that triggers a bug fails alone.
    Only StoreUnavailable fails all of them at once. A caller that is cancelled cancels no other.

    With `answer_seconds`, callers of a batch get StoreUnavailable after that time, and the next batch begins: whether
    the items were handled is then unknown.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
        *,
        name: str,
        at_once: int,
        most: int = MOST_ITEMS,
        answer_seconds: float | None = None,
    ) -> None:
        self._handle = handle
        self._name = name
        self._at_once = at_once
        self._most = most
        self._answer_seconds = answer_seconds
        self._waiting: list[_Waiting[A, R]] = []
        self._writing = 0
        self._begins = False
        """Whether a batch of the waiting items begins in the next iteration of the event loop."""
        self._tasks: set[asyncio.Future[Any]] = set()

    def __call__(self, item: A) -> "asyncio.Future[R]":
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if not self._begins and self._writing < self._at_once:
            self._begins = True
            self._writing += 1
            self._keep(asyncio.create_task(self._work(), name=self._name))
        return answer

    async def aclose(self) -> None:
        """Wait briefly for the running batches; the callers of the rest get StoreUnavailable."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            for task in left:
                task.cancel()

    async def _work(self) -> None:
        batch: list[_Waiting[A, R]] = []
        self._begins = False
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        except asyncio.CancelledError:
            _fail([*batch, *self._waiting], StoreUnavailable(self._name, "it was closed"))
            self._waiting.clear()
            raise
        finally:
            # No item waited in this iteration: the next item starts a new task.
            self._writing -= 1

    async def _answer(self, batch: Sequence[_Waiting[A, R]]) -> None:
        items = [item for item, _ in batch]
        try:
            answers = await (self._handle(items) if self._answer_seconds is None else self._in_time(items))
        except Exception as error:  # noqa: BLE001  the callers get it
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                _fail(batch, error)
            else:
                for one in batch:
                    await self._answer([one])
            return
        for (_, caller), answer in zip(batch, answers, strict=True):
            if not caller.done():
                caller.set_result(answer)

    async def _in_time(self, items: Sequence[A]) -> Sequence[R]:
        # In a task of its own, which is abandoned when a server hangs: a rollback would hang as well.
        handling = asyncio.ensure_future(self._handle(items))
        self._keep(handling)
        done, _ = await asyncio.wait({handling}, timeout=self._answer_seconds)
        if not done:
            handling.add_done_callback(lambda late: late.cancelled() or late.exception())
            handling.cancel()
            raise StoreUnavailable(self._name, f"no answer within {self._answer_seconds:g} s")
        return handling.result()

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fail(batch: Sequence[_Waiting[A, R]], error: Exception) -> None:
    for _, caller in batch:
        if not caller.done():
            caller.set_exception(error)
