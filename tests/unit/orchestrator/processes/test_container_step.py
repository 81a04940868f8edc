"""A container that has ended lacks no limit, also where the kernel's files show none."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from solstice_orchestrator.processes import container_step
from tests.executor_harness import NEEDS_PROC

pytestmark = NEEDS_PROC


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of a container's first one.

    Its limit of memory, if any, is far above a byte.
    """
    with subprocess.Popen(command) as process:
        try:
            (folder / "pid").write_text(str(process.pid))
            (folder / "limits").write_text(json.dumps({"memory": 1}))
            yield process
        finally:
            process.kill()


def facts(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "facts").read_text())
    return found


def test_a_limit_that_a_running_container_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_step, "ENDING_SECONDS", 0.1)
    with started(tmp_path, "sleep", "1000"):
        assert container_step.main(tmp_path, "limits") == 1
    assert facts(tmp_path)["unlimited"] == "memory"


def test_a_container_that_has_ended_and_is_not_collected_lacks_none(tmp_path: Path) -> None:
    with started(tmp_path, "true") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert container_step.main(tmp_path, "limits") == 0


def test_a_container_that_is_ending_lacks_none(tmp_path: Path) -> None:
    """The kernel moves a process out of its groups before its end shows."""
    with started(tmp_path, "sleep", "0.2"):
        assert container_step.main(tmp_path, "limits") == 0


def test_a_container_that_is_gone_lacks_none(tmp_path: Path) -> None:
    with started(tmp_path, "sleep", "1000") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert container_step.main(tmp_path, "limits") == 0


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
ENDS_ITS_FIRST_THREAD = """
import ctypes, pathlib, sys, threading, time
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
threading.Thread(target=time.sleep, args=(1000,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    folder = MEMORY_GROUPS / f"solstice-test-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.skipif(
    not os.access(MEMORY_GROUPS, os.W_OK),
    reason="not asked for: with version 2 the kernel names the groups of threads that have ended",
)
def test_a_container_whose_first_thread_has_ended_still_has_its_limits(tmp_path: Path, group: Path) -> None:
    """A hostile image could otherwise pass its failure off as the container runtime's."""
    (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    command = (sys.executable, "-c", ENDS_ITS_FIRST_THREAD, str(group))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            state = Path(f"/proc/{process.pid}/stat")
            while state.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
            (tmp_path / "pid").write_text(str(process.pid))
            (tmp_path / "limits").write_text(json.dumps({"memory": 256 << 20}))
            assert container_step.main(tmp_path, "limits") == 0
            (tmp_path / "limits").write_text(json.dumps({"memory": 1}))
            assert container_step.main(tmp_path, "limits") == 1
        finally:
            process.kill()
