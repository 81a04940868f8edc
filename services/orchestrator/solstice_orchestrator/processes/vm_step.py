"""Run one step in a job's VM, and end as it ends.

Run as `python -I -S vm_step.py DIRECTORY NUMBER SCRIPT` with the standard library alone, as a child of the
supervisor. `vm_host.py` owns the VM and passes on the output; it is asked here for a step, and answers with its
status. The step's environment are our variables whose names begin with JOB_, without that prefix.

Where the VM has ended, the exit code is 1, and `DIRECTORY/facts` says why: `lost` is written here, when
`vm_host.py` was killed, which the job cannot do.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

PREFIX: Final = "JOB_"
SOURCE: Final = "/workspace"


def main(directory: str, number: str, script: str) -> int:
    os.chdir(directory)
    # The supervisor asks all its processes to end. We end when the VM does.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    variables = {
        name.removeprefix(PREFIX): value for name, value in os.environ.items() if name.startswith(PREFIX)
    }
    step = {"number": number, "script": script, "env": variables, "directory": SOURCE}
    answer = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as vm:
        vm.connect("steps")
        vm.sendall(json.dumps(step).encode())
        vm.shutdown(socket.SHUT_WR)
        while piece := vm.recv(4096):
            answer += piece
    if answer:
        return int(json.loads(answer)["status"])
    if not _facts():
        with contextlib.suppress(OSError):
            Path("facts").write_text(json.dumps({"lost": True}))
    return 1


def _facts() -> object:
    """Return what vm_host.py wrote down; nothing when it was killed while it wrote."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(Path("facts").read_text())
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
