"""Find and kill the processes that a job leaves behind when it kills its supervisor.

A process whose supervisor is gone becomes a child of the nearest subreaper above (prctl(2)), which is this process once
`adopt` was called. Every process of a job has a session other than ours, and so has every child that `children.start`
began. A child of ours that has another session and was not started by us has lost its supervisor, and is killed. Jobs
whose supervisors live are not touched: their processes are children of those.
"""

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes.supervisor import become_subreaper, process_ids, signal_all

LOG = structlog.get_logger(__name__)

ROUNDS: Final = 5000
"""How often to look for orphans before reporting those left: for at least ten seconds."""
PAUSE_SECONDS: Final = 0.002


class StartedChild(Protocol):
    """A child that we started, as `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...


_started: dict[int, StartedChild] = {}
_starters: list[subprocess.Popen[bytes]] = []
_before: set[int] = set()
_adopting: list[bool] = []
_seen_at = [-math.inf]
"""When there were last no orphans."""


def adopt() -> None:
    """Become the parent of processes that lose their supervisor.

    Only `children.start` may start children of a process that calls this.
    """
    if sys.platform.startswith("linux") and not _adopting:
        _before.update(pid for pid, _, _ in _children())
        become_subreaper()
        _adopting.append(True)


def remember_child(process: StartedChild) -> None:
    """Remember a child that we started, so that it is not killed as an orphan."""
    _started[process.pid] = process


def remember_starter(process: "subprocess.Popen[bytes]") -> None:
    """Remember a process that forks children for us.

    They stay in its session until we know them.
    """
    _starters[:] = [*(each for each in _starters if each.returncode is None), process]


async def kill_orphans(pause_seconds: float = 0.0) -> None:
    """Kill and reap all orphans and the processes that they start, until none is left.

    Nothing is done when that was last seen less than `pause_seconds` ago: it reads the state of every process.
    """
    if not _adopting or time.monotonic() - _seen_at[-1] < pause_seconds:
        return
    for _ in range(ROUNDS):
        orphans = _orphans()
        if not orphans:
            _seen_at[:] = [time.monotonic()]
            return
        _kill(orphans)
        await asyncio.sleep(PAUSE_SECONDS)
    LOG.error(LogEvent.PROCESSES_NOT_ENDED, directory="", count=len(_orphans()))


def _kill(pids: Sequence[int]) -> None:
    """Kill these processes, and reap those that ended.

    Their children become ours, and the next round finds them.
    """
    # Stopped first: a stopped process does not fork while we kill the others.
    signal_all(set(pids), signal.SIGSTOP)
    signal_all(set(pids), signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _orphans() -> Sequence[int]:
    """Return the children that we did not start.

    The thread that starts children calls this, so that it knows all of them.
    """
    for pid in [pid for pid, process in _started.items() if process.returncode is not None]:
        del _started[pid]
    # A starter that has ended is known as ended before its process id can be that of a job's session.
    starters = {each.pid for each in _starters if each.poll() is None}
    own_session = os.getsid(0)
    return [
        pid
        for pid, session, ended in _children()
        if session != own_session
        and (session not in starters or ended)
        and pid not in _started
        and pid not in _before
    ]


def _children() -> Sequence[tuple[int, int, bool]]:
    """Return the process ids and sessions of our children, and whether they are zombies."""
    children = []
    for pid in process_ids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain parentheses and spaces: proc(5).
            state, parent, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
            if int(parent) == os.getpid():
                children.append((pid, int(session), state == b"Z"))
    return children
