"""Keeps one server alive exactly as long as the process that started it.

Run as `python process_guard.py DIRECTORY COMMAND...`. Standard input is a leash, and its last word before it
ends says how to stop the command: `stop` sends SIGTERM and waits twenty seconds, `interrupt` sends SIGINT and
waits as long, `kill` sends SIGKILL at once. A leash that ends without a word means that the parent is dead:
the command is killed, and DIRECTORY removed. Everything that the command left behind (such as an epmd of its
own) ends with it: as a "child subreaper" the guard is the parent of every daemon below it, so it ends
processes by descent, never by name.

Source: prctl(2), PR_SET_CHILD_SUBREAPER; proc_pid_stat(5).
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 20.0
SIGNALS = {b"stop": signal.SIGTERM, b"interrupt": signal.SIGINT}


def descendants(ancestor: int) -> set[int]:
    """The pids of all processes below this one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The second field is the command in parentheses and may itself hold spaces and parentheses.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def reap() -> None:
    """Collect every child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(directory: str, *command: str) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The leash decides, not a Ctrl-C on the terminal that pytest shares with us.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, not SIG_IGN: the server does not inherit it.
        signal.signal(ignored, lambda *_: None)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    watched = os.pidfd_open(server.pid)
    last, orphaned = b"", False
    while True:
        ready, _, _ = select.select([0, watched], [], [])
        if watched in ready:
            break
        word = os.read(0, 64).strip()
        if not word:
            orphaned = not last
            break
        last = word
    if last in SIGNALS:
        server.send_signal(SIGNALS[last])
        select.select([watched], [], [], GRACE_SECONDS)
    while below := descendants(os.getpid()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap()
    if orphaned:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
