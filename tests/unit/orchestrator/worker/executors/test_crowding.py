"""The job that is ended when no more processes can be started."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from solstice_orchestrator.worker.executors import crowding as module
from solstice_orchestrator.worker.executors.crowding import (
    LEAST_GUILTY,
    CrowdingWatch,
    crowding,
    is_room_for,
    processes_below,
)
from tests.executor_harness import NEEDS_PROC
from tests.polling import wait_until

FAMILY = """
import os, threading, time
ended = os.fork()
if ended == 0:
    os._exit(0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
if os.fork() == 0:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(60,)).start()
    print(flush=True)
time.sleep(60)
"""
"""A process with a zombie, and a child with six threads."""


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({1: LEAST_GUILTY - 1, 2: 3}, None),
        ({1: LEAST_GUILTY, 2: LEAST_GUILTY + 1}, 2),
        ({}, None),
    ],
    ids=["others have the processes", "the one with the most", "no job runs"],
)
def test_the_job_with_the_most_processes_is_ended(counts: Mapping[int, int], expected: int | None) -> None:
    assert crowding(counts) == expected


@NEEDS_PROC
def test_zombies_and_threads_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        counts = processes_below({process.pid: None})
        os.killpg(process.pid, signal.SIGKILL)
    assert counts == {process.pid: 7}


def test_here_is_room_for_a_process() -> None:
    assert is_room_for(1)


async def test_a_job_is_ended_when_there_is_no_room_twice_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    room = iter((False, True, False, False))
    checks: list[bool] = []

    def checked(_spare: int) -> bool:
        checks.append(next(room))
        return checks[-1]

    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(module, "is_room_for", checked)
    monkeypatch.setattr(module, "processes_below", lambda jobs: dict.fromkeys(jobs, 5) | {2: LEAST_GUILTY})
    watch = CrowdingWatch()
    with watch.watching(1) as innocent, watch.watching(2) as guilty:
        await wait_until(guilty.done)
        assert not innocent.done()
        assert f"{LEAST_GUILTY} processes" in guilty.result().detail
    assert checks == [False, True, False, False]
