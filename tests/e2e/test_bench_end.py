"""`./just bench` takes its services with it when it is ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.polling import LONG_WAIT_SECONDS
from tests.servers.solstice_up import clean_environment


def services(pid: int) -> list[int]:
    """The children of a process that are services of ours."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            if b"solstice_" in Path(f"/proc/{child}/cmdline").read_bytes().partition(b"-c\0")[2]:
                found.append(int(child))
    return found


def test_a_measure_that_is_ended_leaves_no_service_behind(tmp_path: Path) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "tests.bench", "load", "--broker", "embedded", "--quick"],
        env=clean_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    begun = services(bench.pid)
    deadline = time.monotonic() + LONG_WAIT_SECONDS
    while not begun:
        assert bench.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
        begun = services(bench.pid)
    bench.terminate()
    ended = bench.wait(LONG_WAIT_SECONDS)
    left = [pid for pid in begun if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (left, ended != 0) == ([], True)
