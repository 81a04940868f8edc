"""Runs a service as a process, on the fastest event loop, until a signal."""

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
COLLECT_AFTER: Final = (10_000, 20, 20)
"""New objects before each search for cycles, by generation (Python's own: 700, 10, 10)."""


def run_until_signalled(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, hurry: asyncio.Event | None = None
) -> None:
    """Run `serve(stop)` to its end.

    SIGTERM and SIGINT set `stop`; the next signal ends the process at once.

    With `hurry`, the second signal sets that instead, and the third ends the process.
    A group that holds one error is raised as that error.
    """
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_with_signals(serve, hurry))
    except BaseExceptionGroup as group:
        raise _only(group) from group


def tune_garbage_collection() -> None:
    """Search for cycles less often; call it once everything is opened.

    The objects of the start live as long as the process.

    They are not searched for cycles again, and later objects less often: a service makes many objects and
    hardly any cycles, and the search took a tenth of its work (docs.python.org/3/library/gc.html).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _with_signals(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]], hurry: asyncio.Event | None
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    on_signals = [stop] if hurry is None else [stop, hurry]

    def answer() -> None:
        on_signals.pop(0).set()
        for number in SIGNALS if not on_signals else ():
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, answer)
    try:
        await serve(stop)
    finally:
        # Closing uvloop leaves its handlers in place, which then answer nothing.
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
