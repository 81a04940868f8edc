"""Groups formed by the turn of the event loop: what many tasks ask for in one turn is asked for once."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Gathering(Generic[A, R]):
    """Call it with an item, get that item's answer; all items of one turn of the loop are handled in one call.

    `handle` begins the work on some items, in the order they came, and returns the future of their answers, in the
    same order; its exception is that of every caller of the turn. A caller that is cancelled cancels nobody else.
    """

    def __init__(self, handle: Callable[[Sequence[A]], "asyncio.Future[Sequence[R]]"]) -> None:
        self._handle = handle
        self._turn: _Turn[A, R] | None = None

    async def __call__(self, item: A) -> R:
        turn = self._turn
        if turn is None:
            loop = asyncio.get_running_loop()
            turn = self._turn = _Turn(answers=loop.create_future())
            loop.call_soon(self._end_of, turn)
        place = len(turn.items)
        turn.items.append(item)
        return (await asyncio.shield(turn.answers))[place]

    def _end_of(self, turn: "_Turn[A, R]") -> None:
        self._turn = None
        try:
            handled = self._handle(turn.items)
        except Exception as error:  # noqa: BLE001  the callers get it
            turn.fail(error)
        else:
            handled.add_done_callback(turn.end)


@dataclass(slots=True, eq=False)
class _Turn(Generic[A, R]):
    answers: "asyncio.Future[Sequence[R]]"
    items: list[A] = field(default_factory=list)

    def end(self, handled: "asyncio.Future[Sequence[R]]") -> None:
        if handled.cancelled():
            self.answers.cancel()
        elif (error := handled.exception()) is not None:
            self.fail(error)
        else:
            self.answers.set_result(handled.result())

    def fail(self, error: BaseException) -> None:
        self.answers.set_exception(error)
        self.answers.exception()  # seen, even when every caller has gone
