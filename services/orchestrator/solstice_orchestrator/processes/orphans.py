"""Find and kill the processes that a job leaves behind when it kills its supervisor.

A process whose supervisor is gone becomes a child of the nearest subreaper above (prctl(2)), which is this process once
`adopt` was called. Every process of a job has a session other than ours, and so has every child that `children.start`
began. A child of ours that has another session and was not started by us has lost its supervisor, and is killed. Jobs
whose supervisors live are not touched: their processes are children of those.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes.supervisor import become_subreaper, process_ids, signal_all

LOG = structlog.get_logger(__name__)

ROUNDS: Final = 5000
"""How often to look for orphans before reporting those left: for at least ten seconds."""
PAUSE_SECONDS: Final = 0.002

_started: dict[int, subprocess.Popen[bytes]] = {}
_before: set[int] = set()
_adopting: list[bool] = []


def adopt() -> None:
    """Become the parent of processes that lose their supervisor.

    Only `children.start` may start children of a process that calls this.
    """
    if sys.platform.startswith("linux") and not _adopting:
        _before.update(pid for pid, _ in _children())
        become_subreaper()
        _adopting.append(True)


def remember_child(process: "subprocess.Popen[bytes]") -> None:
    """Remember a child that we started, so that it is not killed as an orphan."""
    _started[process.pid] = process


async def kill_orphans() -> None:
    """Kill and reap all orphans and the processes that they start, until none is left."""
    if not _adopting:
        return
    for _ in range(ROUNDS):
        orphans = _orphans()
        if not orphans:
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
    own_session = os.getsid(0)
    return [
        pid
        for pid, session in _children()
        if session != own_session and pid not in _started and pid not in _before
    ]


def _children() -> Sequence[tuple[int, int]]:
    """Return the process ids and sessions of our children, zombies included."""
    children = []
    for pid in process_ids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain parentheses and spaces: proc(5).
            _, parent, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
            if int(parent) == os.getpid():
                children.append((pid, int(session)))
    return children
