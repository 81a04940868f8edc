"""Runs our programs in forks of a process that has imported them.

Run with a socket as standard input. Each message there asks for one program, as JSON (`module`, `argv`, `env`, `cwd`), with
four descriptors: its standard input, output and error, and where its process id and then its exit code are written. It ends
with the socket.

A fork is a process of its own, with its own environment and descriptors. It runs `main` of its module and ends as any Python
does; but it does not import anything, which takes a fresh process half a second and more.
"""

import gc
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Final

PROGRAMS: Final = ("solstice_cli.main", "solstice_forge.cli", "solstice_orchestrator.cli")
PACKAGES: Final = ("solstice_common", "solstice_forge", "solstice_orchestrator", "solstice_cli")
MESSAGE_BYTES: Final = 1 << 20


def main() -> None:
    """Serve until the socket ends; returns in each fork too, once its program has ended."""
    for package in PACKAGES:
        # Programs import some of theirs only when they run.
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    link = socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 4)
        if not message:
            return
        if os.fork() == 0:
            break
        for each in descriptors:
            os.close(each)
    link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, reporting = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(reporting)
        become(streams, **json.loads(message))
    else:
        watch(pid, streams, reporting)


def watch(pid: int, streams: Sequence[int], reporting: int) -> None:
    """Report its process id, and its exit code once it has ended."""
    for each in streams:
        os.close(each)
    os.write(reporting, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(reporting, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become(
    streams: Sequence[int], *, module: str, argv: Sequence[str], env: Mapping[str, str], cwd: str
) -> None:
    """Be that program until it ends."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, max(streams) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = _opened(0, "r")
    sys.stdout = _opened(1, "w")
    sys.stderr = _opened(2, "w", errors="backslashreplace", line_buffering=True)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.argv = [*argv]
    import_module(module).main()


def _opened(descriptor: int, mode: str, **options: Any) -> io.TextIOWrapper:
    file = os.fdopen(descriptor, f"{mode}b", closefd=False)
    return io.TextIOWrapper(file, encoding="utf-8", **options)


if __name__ == "__main__":
    main()
