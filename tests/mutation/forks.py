"""Runs work in a fork, and ends all that it has begun."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def forked(work: Callable[[], bool], seconds: float) -> int | None:
    """The result of the work in a fork; None: it ran out of time.

    All its processes end, also when we are interrupted.
    """
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        _child(work)
    try:
        return _status(process, time.monotonic() + seconds)
    finally:
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)


def _status(process: int, ends_at: float) -> int | None:
    pause = 0.002
    while time.monotonic() < ends_at:
        # It stays a zombie until its group was ended, so that its number is not used again.
        if ended := os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return ended.si_status
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return None


def _child(work: Callable[[], bool]) -> NoReturn:
    """Run the work in this fork, silently, and end."""
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    good = False
    try:
        good = work()
    finally:
        os._exit(0 if good else 1)
