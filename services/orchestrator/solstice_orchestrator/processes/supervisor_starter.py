"""A small prepared process from which supervisors are forked.

That is cheaper than to start Python for each job. Run as `python -I -S supervisor_starter.py SUPERVISOR REMOVAL COPIES`,
with the paths of `supervisor.py`, `small_trees.py` and `small_copies.py`, on Linux. Standard input is a socket.
Each message on it brings the path of the job's control group, or nothing, a NUL, the directory of a checkout, or
nothing, and three descriptors: the control, verdict and log pipes of a new supervisor. That is a copy of this process,
and a child not of this process but of the one that started it (CLONE_PARENT, clone(2)), which therefore waits for it
and learns its exit code as it would of a supervisor that it had started itself. Its first bytes on the verdict pipe are
its process id. Without it both pipes close.

With a directory, it first writes the checkout there that comes through the control pipe before the plan. One process
with one thread does that with less work than the orchestrator, whose threads wait for its interpreter.

It keeps no descriptor, plan or secret of any job, and ends when its socket closes.
"""

import ctypes
import gc
import importlib.util
import os
import signal
import socket
import sys
from types import ModuleType
from typing import Final

CLONE_PARENT: Final = 0x8000
CLONE_NUMBERS: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of the system call on each machine; `os.fork` cannot give the child another parent."""
ID_FORMAT: Final = b"%019d\n"
ID_BYTES: Final = len(ID_FORMAT % 0)
MESSAGE_BYTES: Final = 16384
"""Room for two paths."""


def main() -> None:
    """Fork a supervisor for each message."""
    supervisor, removal, copies = (_loaded(path) for path in sys.argv[1:])
    supervisor.hide_memory()
    supervisor.handle_signals()
    requests = socket.socket(fileno=0)
    # What is here now is needed by every supervisor: no collection has to look at it and copy its pages.
    gc.freeze()
    while True:
        request, pipes, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 3)
        if not pipes:
            return
        if fork_beside() == 0:
            _take(pipes)
            os.write(supervisor.VERDICT, ID_FORMAT % os.getpid())
            group, _, directory = os.fsdecode(request).partition("\0")
            # First of all: the end of the group has to end this process, too.
            supervisor.join([group] if group else [])
            if directory and not copies.write_received(supervisor.CONTROL, supervisor.VERDICT, directory):
                os._exit(1)
            os._exit(supervisor.supervise([], removal.remove_small_tree))
        for pipe in pipes:
            os.close(pipe)


def _loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("loaded", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fork_beside() -> int:
    """Fork this process, which has one thread; the child is our parent's.

    Return 0 in the child, its process id here, and -1 when there is no process for it.
    """
    number = CLONE_NUMBERS[os.uname().machine]
    # PyDLL keeps the interpreter's lock during the call, so that the child holds it as well.
    return int(ctypes.PyDLL(None).syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))


def _take(pipes: list[int]) -> None:
    """Make these our standard input, output and error."""
    # The socket goes with descriptor 0. The three new ones are above 2.
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)


if __name__ == "__main__":
    main()
