"""Supervisors are forked from a prepared process, and no job depends on it."""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.processes import forked_supervisors, supervisor_starter
from solstice_orchestrator.processes.forked_supervisors import ForkedSupervisor
from solstice_orchestrator.processes.small_trees import SMALL_TREE
from solstice_orchestrator.processes.supervisor import process_ids
from solstice_orchestrator.worker import workspaces
from solstice_orchestrator.worker.executors.supervisor_handle import open_supervisor
from solstice_orchestrator.worker.workspaces import Workspace
from tests.builders import execution, job, job_request
from tests.executor_harness import NEEDS_PROC, ExecutorHarness, child_processes, unique_sleep
from tests.polling import wait_until
from tests.repositories import Repository

_PROGRAM = Path(supervisor_starter.__file__).name


def _starters_of(parent: int) -> set[int]:
    found = set()
    for pid in process_ids():
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == parent and _PROGRAM.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
        except OSError:
            continue
    return found


def _open_files(pid: int) -> set[str]:
    return {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


async def _state(harness: ExecutorHarness, script: str, output: list[bytes]) -> JobState:
    """Run a job beside others, whose workspaces and processes the harness would find."""

    async def log(data: bytes) -> None:
        output.append(data)

    request = job_request(repo_url=harness.repository.url, commit_sha=harness.sha)
    return (await harness.executor.run(execution(job(script), request), log, asyncio.Event())).state


@NEEDS_PROC
async def test_a_forked_supervisor_is_our_child_in_a_session_of_its_own(harness: ExecutorHarness) -> None:
    """So is one that is started by itself."""
    await harness.run('ps -o ppid=,sid= -p $PPID; echo $PPID; tr "\\0" " " < /proc/$PPID/cmdline')
    parent, session, pid, *command = harness.text.split()[-10:]
    assert (int(parent), session) == (os.getpid(), pid)
    assert command[-4].endswith(_PROGRAM)


async def test_the_exit_code_of_a_forked_supervisor_says_how_it_ended(harness: ExecutorHarness) -> None:
    async with harness.workspaces.attempt("x") as place, AsyncExitStack() as pipes:
        assert place.starter is not None
        killed, closed = [await place.starter.fork(None) for _ in range(2)]
        assert isinstance(killed, ForkedSupervisor)
        assert isinstance(closed, ForkedSupervisor)
        for pipe in (killed.stdin, killed.stdout, killed.stderr, closed.stdout, closed.stderr):
            pipes.enter_context(pipe)
        assert killed.poll() is None
        killed.kill()
        closed.stdin.close()
        await wait_until(lambda: None not in {killed.poll(), closed.poll()})
        assert (killed.poll(), closed.poll()) == (-signal.SIGKILL, 1)


@NEEDS_PROC
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_jobs_go_on_and_begin_when_another_one_has_hit_the_starter(
    harness: ExecutorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(forked_supervisors, "FORK_SECONDS", 60.0)
    gate, output = tmp_path / "gate", list[bytes]()
    waits = f"echo begun; until test -e {gate}; do sleep 0.02; done; echo went on"
    running = asyncio.ensure_future(_state(harness, waits, output))
    await wait_until(lambda: b"begun\n" in output)
    first = harness.starter_pid
    assert first is not None
    os.kill(first, number)
    monkeypatch.setattr(forked_supervisors, "FORK_SECONDS", 0.3)
    assert await _state(harness, "echo other", []) is JobState.SUCCEEDED
    monkeypatch.setattr(forked_supervisors, "FORK_SECONDS", 60.0)
    gate.touch()
    assert await running is JobState.SUCCEEDED
    assert b"".join(output).endswith(b"begun\nwent on\n")
    assert await _state(harness, "echo third", []) is JobState.SUCCEEDED
    assert harness.starter_pid not in {None, first}


async def test_a_supervisor_gets_a_plan_of_any_length(harness: ExecutorHarness) -> None:
    """The rest of a long one follows after the fork."""
    long = "x" * 120_000
    for starter in (True, False):
        async with harness.workspaces.attempt("x") as place:
            where = place if starter else replace(place, starter=None)
            plan = {"directory": "/", "env": {"LONG": long}, "grace": 1, "timeout": 60, "steps": []}
            async with open_supervisor(execution(job()), where, f"{json.dumps(plan)}\n".encode()) as opened:
                assert await opened.is_ready()
                assert (await opened.verdict()).how == "completed"


async def test_a_supervisor_with_a_plan_begins_nothing_before_it_may(harness: ExecutorHarness) -> None:
    async with harness.workspaces.attempt("x") as place:
        marker = place.root / "begun"
        step: dict[str, object] = {"argv": ["/bin/sh", "-c", f"echo > {marker}"], "env": {}, "timeout": None}
        plan = {"directory": "/", "env": {}, "grace": 1, "timeout": 60, "steps": [step]}
        async with open_supervisor(execution(job()), place, f"{json.dumps(plan)}\n".encode()) as opened:
            assert await opened.is_ready()
            verdict = asyncio.ensure_future(opened.verdict())
            # It has read the plan and announced the step when it asks for the control pipe again.
            await asyncio.sleep(0.2)
            assert not marker.exists()
            opened.send(b"go\n")
            assert (await verdict).how == "completed"
            assert marker.exists()


@NEEDS_PROC
@pytest.mark.parametrize(
    ("script", "here"),
    [
        ("mkdir -p a/b; echo > a/b/c; ln -s /etc/hostname a/link", False),
        (f"touch $(seq {SMALL_TREE + 1})", True),
        ("(sleep 0.01; echo late > $TMPDIR/late) & true", False),
        ("kill -9 $PPID", True),
    ],
    ids=["small", "large", "a process is left", "no supervisor"],
)
async def test_the_supervisor_removes_a_small_workspace_and_the_orchestrator_any_other(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch, script: str, *, here: bool
) -> None:
    left = []
    remove = workspaces._remove

    async def noted(workspace: Workspace) -> None:
        left.append(workspace.root.exists())
        await remove(workspace)
        left.append(workspace.root.exists())

    monkeypatch.setattr(workspaces, "_remove", noted)
    await harness.run(script)
    assert left == [here, False]
    assert await asyncio.to_thread(Path("/etc/hostname").exists)


async def test_a_supervisor_holds_its_three_pipes_and_nothing_of_others(harness: ExecutorHarness) -> None:
    """A pipe that another supervisor held open would hide its orchestrator's end."""
    async with (
        harness.workspaces.attempt("x") as place,
        open_supervisor(execution(job()), place) as first,
        open_supervisor(execution(job()), place) as second,
    ):
        assert await first.is_ready()
        assert await second.is_ready()
        pipes = {each.pid: _open_files(each.pid) for each in (first, second)}
        # Its three, and one of its own that wakes it when a child ends.
        assert [len(each) for each in pipes.values()] == [4, 4]
        assert not pipes[first.pid] & pipes[second.pid]


@NEEDS_PROC
async def test_without_the_starter_a_supervisor_is_started_by_itself(harness: ExecutorHarness) -> None:
    before = child_processes()
    async with (
        harness.workspaces.attempt("x") as place,
        open_supervisor(execution(job()), replace(place, starter=None)) as alone,
    ):
        assert await alone.is_ready()
        assert harness.starter_pid is None
    assert child_processes() <= before


@NEEDS_PROC
async def test_the_starter_ends_with_a_killed_orchestrator(tmp_path: Path, repository: Repository) -> None:
    sha, seconds_asleep = repository.commit({"x": "y"}), unique_sleep()
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.process_peer"),
        *(str(tmp_path / "work"), repository.url, sha, f"echo begun; sleep {seconds_asleep}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert peer.stdout is not None
    while b"begun" not in await peer.stdout.readline():
        pass
    starters = _starters_of(peer.pid)
    assert len(starters) == 2  # and the supervisor that it forked
    peer.kill()
    await peer.wait()
    await wait_until(lambda: not starters & set(process_ids()))
