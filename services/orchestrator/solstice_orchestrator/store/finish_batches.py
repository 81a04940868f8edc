"""Batching of attempt ends: those that come during a write share the next transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.store.decisions.finish import AttemptEnd

TRANSACTIONS_AT_ONCE: Final = 2
"""Two at once: while one writes, the other decides."""
ENDS_AT_ONCE: Final = 256

_Waiting = tuple[AttemptEnd, "asyncio.Future[bool]"]


class FinishBatcher:
    """Call it with the end of an attempt, and await the answer.

    `write` records the ends of many attempts in one transaction.
    """

    def __init__(
        self,
        write: Callable[[Sequence[AttemptEnd]], Awaitable[Sequence[bool]]],
        at_once: int = TRANSACTIONS_AT_ONCE,
    ) -> None:
        self._write = write
        self._at_once = at_once
        self._waiting: list[_Waiting] = []
        self._serving = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, end: AttemptEnd) -> "asyncio.Future[bool]":
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, answer))
        if self._serving < self._at_once:
            # It begins in the next iteration of the event loop, so it includes all other ends of this iteration.
            self._serving += 1
            task = asyncio.create_task(self._serve(), name="ends of attempts")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return answer

    async def _serve(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:ENDS_AT_ONCE], self._waiting[ENDS_AT_ONCE:]
                await self._answer(group)
        finally:
            # In the same iteration in which the queue was found empty: the next call starts a new task.
            self._serving -= 1

    async def _answer(self, group: Sequence[_Waiting]) -> None:
        try:
            known = await self._write([end for end, _ in group])
        except Exception as error:  # noqa: BLE001  the callers get it
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for _, answer in group:
                    if not answer.done():
                        answer.set_exception(error)
                return
            # One of these ends caused the error; retry each alone so that the others succeed.
            for one in group:
                await self._answer([one])
            return
        for (_, answer), recorded in zip(group, known, strict=True):
            if not answer.done():
                answer.set_result(recorded)
