"""Groups concurrent writes: items that come during one transaction form the next.

There is one transaction at a time, in the order the items came.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from solstice_common.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")

AT_ONCE: Final = 256
END_SECONDS: Final = 2.0


class Groups(Generic[A, R]):
    """Call it with an item to get that item's answer; opened with `Groups.open`.

    `write` handles a group and returns the answers in its order. After `timeout_seconds` without the group's answer its
    callers get StoreUnavailable, and the next group continues: whether the group was written is then unknown.
    """

    def __init__(
        self, where: str, write: Callable[[Sequence[A]], Awaitable[Sequence[R]]], timeout_seconds: float
    ) -> None:
        self._where = where
        self._write = write
        self._timeout_seconds = timeout_seconds
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._serving: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[Sequence[R]]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, where: str, write: Callable[[Sequence[A]], Awaitable[Sequence[R]]], timeout_seconds: float
    ) -> AsyncIterator["Groups[A, R]"]:
        """Open the groups; leaving waits briefly for the open writes."""
        groups = cls(where, write, timeout_seconds)
        try:
            yield groups
        finally:
            await groups._close()

    async def __call__(self, item: A) -> R:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._serving is None:
            # It begins in the loop's next iteration, and so includes all items that come in this one.
            self._serving = asyncio.create_task(self._serve(), name="inbox-groups")
        return await answer

    async def _serve(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._answer(group)
        finally:
            # In the same iteration in which no item was waiting: the next item starts a new task.
            self._serving = None

    async def _answer(self, group: Sequence[tuple[A, "asyncio.Future[R]"]]) -> None:
        try:
            answers = await self._written([item for item, _ in group])
        except Exception as error:  # noqa: BLE001  the callers get it
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for _, answer in group:
                    if not answer.done():
                        answer.set_exception(error)
                return
            # One item caused the error: write each alone, so that the others succeed.
            for one in group:
                await self._answer([one])
            return
        for (_, answer), given in zip(group, answers, strict=True):
            if not answer.done():
                answer.set_result(given)

    async def _written(self, items: Sequence[A]) -> Sequence[R]:
        # A separate task, which is abandoned when the server hangs: a rollback would hang as well.
        writing = asyncio.ensure_future(self._write(items))
        self._writing.add(writing)
        writing.add_done_callback(self._forget)
        done, _ = await asyncio.wait({writing}, timeout=self._timeout_seconds)
        if not done:
            writing.cancel()
            raise StoreUnavailable(self._where, f"no answer within {self._timeout_seconds:g} s")
        return writing.result()

    def _forget(self, writing: "asyncio.Task[Sequence[R]]") -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()

    async def _close(self) -> None:
        tasks = {task for task in (self._serving, *self._writing) if task is not None}
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=END_SECONDS)
            for task in left:
                task.cancel()
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(StoreUnavailable(self._where, "it was closed"))
