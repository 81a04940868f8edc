"""One timer shared by all tasks that wait.

A timer per webhook was a twentieth of a webhook's cost.
"""

import asyncio
from types import TracebackType
from typing import Any, Final

_CHECKS: Final = 10
"""How many times within the timeout the timer checks which tasks are late."""

Task = asyncio.Task[Any]


class SharedTimeout:
    """`asyncio.timeout(seconds)` for any number of tasks of one loop.

    It may be late by a tenth of the time. A task enters it once at a time. A task whose time is up gets TimeoutError.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds
        self._deadlines: dict[Task, float] = {}
        self._overdue: set[Task] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[_this_task()] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_later(self.seconds / _CHECKS, self._check, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = _this_task()
        del self._deadlines[task]
        if task in self._overdue:
            self._overdue.discard(task)
            # The task was also cancelled from elsewhere: it stays cancelled.
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for task, deadline in self._deadlines.items():
            if deadline <= now and task not in self._overdue:
                self._overdue.add(task)
                task.cancel()
        if self._deadlines:
            self._timer = loop.call_later(self.seconds / _CHECKS, self._check, loop)


def _this_task() -> Task:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  for the type checker: it is entered in coroutines
    return task
