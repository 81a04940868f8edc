"""Run work to its end although its caller is cancelled, or beside its caller."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T], name: str) -> T:
    """Return the result of `work`, and raise a cancellation only after it."""
    task = asyncio.create_task(work, name=name)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()
        raise asyncio.CancelledError
    return task.result()


@contextmanager
def run_beside(
    work: Callable[[], Coroutine[Any, Any, None]], *, after_seconds: float, name: str
) -> Iterator[None]:
    """Run `work` in a task that begins after so many seconds; leaving cancels it.

    Most blocks are left before that, and cost no task.
    """
    loop, begun = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    timer = loop.call_later(after_seconds, lambda: begun.append(loop.create_task(work(), name=name)))
    try:
        yield
    finally:
        timer.cancel()
        for task in begun:
            task.cancel()
