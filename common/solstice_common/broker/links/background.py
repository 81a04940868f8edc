"""Runs the endless tasks of a broker beside the code that uses it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from solstice_common.telemetry.log_events import LogEvent

PARTING_SECONDS: Final = 6.0

log = structlog.get_logger(__name__)


@asynccontextmanager
async def background(works: Mapping[str, Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run endless tasks beside the body; leaving ends them within a few seconds.

    Not a TaskGroup: that would wrap every error of the body in a group. An error of a task is a bug; it is
    logged when it happens and raised on leaving.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    for task in tasks:
        task.add_done_callback(_log_crash)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=PARTING_SECONDS)
        for task in done:
            if not task.cancelled():
                task.result()


def _log_crash(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error(LogEvent.TASK_CRASHED, task=task.get_name(), exc_info=error)
