"""Nothing a job does passes for an infrastructure failure, which would be retried."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Reason, StepSpec
from solstice_orchestrator.worker.executors import disk, process, supervisor_handle
from solstice_orchestrator.worker.executors.supervisor_handle import SupervisorHandle
from tests.builders import execution, job, job_request
from tests.executor_harness import (
    NEEDS_DISKS,
    NEEDS_PROC,
    ExecutorHarness,
    mounted_disk,
    open_harness,
    processes_sleeping,
    replace_executor,
    unique_sleep,
)
from tests.polling import wait_until
from tests.repositories import Repository

# -- by its exit ---------------------------------------------------------------------------------------------------

DEADLY = sorted(
    set(signal.valid_signals())
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


@pytest.mark.parametrize("tens", range(26))
async def test_every_exit_code_is_the_jobs_own(harness: ExecutorHarness, tens: int) -> None:
    for code in range(max(1, tens * 10), min(256, tens * 10 + 10)):
        outcome = await harness.run(f"exit {code}")
        assert (outcome.state, outcome.reason, outcome.exit_code) == (
            JobState.FAILED,
            Reason.STEP_FAILED,
            code,
        )


@pytest.mark.parametrize("number", DEADLY)
async def test_a_step_that_a_signal_ended_has_failed(harness: ExecutorHarness, number: int) -> None:
    # Not bash itself: it ignores SIGQUIT.
    outcome = await harness.run(f"exec sh -c 'ulimit -c 0; kill -{int(number)} $$; sleep 100'")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert outcome.exit_code == 128 + number
    assert f"was ended by {getattr(number, 'name', f'signal {int(number)}')}" in outcome.detail


async def test_a_job_that_kills_its_own_group_has_failed(harness: ExecutorHarness) -> None:
    assert (await harness.run("kill -9 0")).exit_code == 137


# -- by its supervisor ---------------------------------------------------------------------------------------------


@NEEDS_PROC
@pytest.mark.parametrize("number", ["KILL", "ABRT"])
async def test_a_job_that_kills_its_supervisor_has_failed_and_is_gone(
    harness: ExecutorHarness, number: str
) -> None:
    seconds_asleep = unique_sleep()
    outcome = await harness.run(
        f"setsid sleep {seconds_asleep} &\nsleep {seconds_asleep} &\nkill -{number} $PPID\nsleep {seconds_asleep}"
    )
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert "supervisor" in outcome.detail
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
async def test_a_job_that_stops_its_supervisor_times_out(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SLACK_SECONDS", 0.3)
    seconds_asleep = unique_sleep()
    outcome = await harness.run(
        f"setsid sleep {seconds_asleep} &\nkill -STOP $PPID\nsleep {seconds_asleep}", timeout_seconds=0.5
    )
    assert outcome.state is JobState.TIMED_OUT
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
async def test_a_job_that_stops_its_supervisor_can_be_cancelled(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SLACK_SECONDS", 0.2)
    seconds_asleep, stop = unique_sleep(), asyncio.Event()
    running = asyncio.ensure_future(harness.run(f"kill -STOP $PPID\nsleep {seconds_asleep}", stop=stop))
    await wait_until(lambda: processes_sleeping(seconds_asleep))
    stop.set()
    assert (await running).state is JobState.CANCELLED


@NEEDS_PROC
async def test_a_job_that_stops_its_supervisor_is_gone_when_it_is_handed_back(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_handle, "LEAVE_SECONDS", 0.2)
    seconds_asleep = unique_sleep()
    running = asyncio.ensure_future(
        harness.run(f"setsid sleep {seconds_asleep} &\nkill -STOP $PPID\nsleep {seconds_asleep}")
    )
    await wait_until(lambda: len(processes_sleeping(seconds_asleep)) == 2)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert processes_sleeping(seconds_asleep) == set()


async def test_words_of_a_verdict_in_the_output_mean_nothing(harness: ExecutorHarness) -> None:
    forged = json.dumps({"event": "end", "how": "completed"})
    outcome = await harness.run(f"echo '{forged}'; echo '{forged}' >&2; exit 5")
    assert outcome.exit_code == 5


@NEEDS_PROC
async def test_a_forged_verdict_is_never_an_infrastructure_failure(harness: ExecutorHarness) -> None:
    for reason in INFRASTRUCTURE:
        forged = json.dumps({"event": "end", "how": reason, "reason": reason})
        outcome = await harness.run(
            f"echo '{forged}' > /proc/$PPID/fd/1 || true\necho '{forged}' > /proc/$PPID/fd/2 || true\n"
            "kill -9 $PPID; exit 1"
        )
        assert outcome.reason not in INFRASTRUCTURE


@NEEDS_PROC
@pytest.mark.skipif(os.geteuid() == 0, reason="not asked for: root may look into any process")
async def test_a_job_cannot_reach_into_its_supervisor(harness: ExecutorHarness) -> None:
    await harness.run("ls /proc/$PPID/fd || echo closed")
    assert harness.text.splitlines()[-1] == "closed"


@NEEDS_PROC
async def test_a_job_that_leaves_us_no_thread_has_failed_and_is_gone(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_thread, refused = asyncio.to_thread, []

    def no_thread(work: Callable[..., Any], *arguments: Any, **named: Any) -> Awaitable[Any]:
        if work.__name__ != "_kill":
            return to_thread(work, *arguments, **named)
        refused.append(work)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    seconds_asleep = unique_sleep()
    outcome = await harness.run(f"setsid sleep {seconds_asleep} &\nkill -KILL $PPID\nsleep {seconds_asleep}")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert refused
    assert processes_sleeping(seconds_asleep) == set()


async def test_a_job_that_cannot_be_looked_after_any_more_has_failed(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SupervisorHandle, "verdict", broken)
    seconds_asleep = unique_sleep()
    outcome = await harness.run(f"sleep {seconds_asleep}")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
async def test_a_job_that_multiplies_is_ended_whole(harness: ExecutorHarness) -> None:
    seconds_asleep = unique_sleep()
    bomb = f"""
        trap '' TERM HUP INT
        bomb() {{
            if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi
            exec setsid sleep {seconds_asleep}
        }}
        bomb 7 &
        until [ $(pgrep -c -f -x 'sleep {seconds_asleep}') -ge 200 ]; do sleep 0.05; done
        echo grown
        exit 3
    """
    outcome = await harness.run(bomb)
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, Reason.STEP_FAILED, 3)
    assert "grown" in harness.text
    assert processes_sleeping(seconds_asleep) == set()


async def test_a_job_that_closes_every_descriptor_ends_by_its_own_account(harness: ExecutorHarness) -> None:
    outcome = await harness.run('echo begun; for fd in $(seq 0 254); do eval "exec $fd>&-"; done; exit 6')
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, Reason.STEP_FAILED, 6)
    assert "begun" in harness.text


# -- by its workspace ----------------------------------------------------------------------------------------------

GONE = {
    "its own files": "$SOLSTICE_WORKSPACE",
    "the scripts of its steps too": "$SOLSTICE_WORKSPACE/..",
}


@pytest.mark.parametrize("what", GONE.values(), ids=GONE.keys())
async def test_a_job_may_remove_its_workspace_as_long_as_it_needs_it_no_more(
    harness: ExecutorHarness, what: str
) -> None:
    outcome = await harness.run(f'rm -rf "$(readlink -f "{what}")"; echo still here')
    assert outcome.state is JobState.SUCCEEDED
    assert "still here" in harness.text


@pytest.mark.parametrize("what", GONE.values(), ids=GONE.keys())
async def test_a_job_that_removed_its_workspace_fails_with_its_next_step(
    harness: ExecutorHarness, what: str
) -> None:
    outcome = await harness.run(
        f'rm -rf "$(readlink -f "{what}")"; echo removed', StepSpec(name="next", run="echo never")
    )
    assert (outcome.state, outcome.reason, outcome.step) == (JobState.FAILED, Reason.STEP_FAILED, "next")
    assert "removed" in harness.text
    assert "never" not in harness.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", mib=2) as path:
        yield path


FILL = "head -c 9000000 /dev/zero > filling"


@NEEDS_DISKS
async def test_a_job_that_fills_the_disk_and_stays_is_ended_and_the_others_are_not(
    small_disk: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CHECK_SECONDS", 0.05)
    seconds_asleep = unique_sleep()
    async with open_harness(small_disk, repository) as harness:
        replace_executor(harness, disk=disk.DiskWatch(700_000))
        gate = harness.workspaces.directory / "git" / "gate"
        other = asyncio.ensure_future(
            harness.run(f"seq 10000 > small; echo written; until test -e {gate}; do sleep 0.02; done")
        )
        # A job that still writes while the disk is full fails by itself: let it write before.
        await wait_until(lambda: "written" in harness.text)
        filler = ExecutorHarness(
            executor=harness.executor, workspaces=harness.workspaces, repository=repository, sha=harness.sha
        )
        request = job_request(repo_url=repository.url, commit_sha=harness.sha)

        async def log(data: bytes) -> None:
            filler.output.append(data)

        spec = job(f"{FILL} || true; sleep {seconds_asleep}")
        outcome = await filler.executor.run(execution(spec, request), log, asyncio.Event())
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
        assert "the disk is nearly full" in filler.text
        assert processes_sleeping(seconds_asleep) == set()
        assert not other.done()
        gate.touch()
        assert (await other).state is JobState.SUCCEEDED


@NEEDS_DISKS
async def test_a_job_that_uses_up_the_inodes_is_ended(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CHECK_SECONDS", 0.05)
    files = "for i in {1..3000}; do : > file$i || break; done; sleep 60"
    with mounted_disk(tmp_path / "disk", mib=64, inodes=2000) as path:
        async with open_harness(path, repository) as harness:
            replace_executor(harness, disk=disk.DiskWatch(4 * disk.MIB))
            outcome = await harness.run(files, timeout_seconds=15)
            assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
            assert "the disk has hardly any inodes left" in harness.text


@NEEDS_DISKS
@pytest.mark.parametrize(
    ("runs", "state"),
    [
        ((f"echo begun; {FILL}; echo never",), JobState.FAILED),
        ((f"{FILL} || echo begun", "seq 3 > $TMPDIR/more; echo never"), JobState.FAILED),
        ((f"{FILL} || echo begun", "rm filling; seq 3 > more; echo it goes on"), JobState.SUCCEEDED),
    ],
    ids=["and fails by it", "and fails later", "and makes room again"],
)
async def test_a_job_that_fills_the_disk_ends_by_its_own_account(
    small_disk: Path, repository: Repository, runs: tuple[str, ...], state: JobState
) -> None:
    async with open_harness(small_disk, repository) as harness:
        outcome = await harness.run(*runs)
        assert outcome.state is state
        assert outcome.reason not in INFRASTRUCTURE
        assert "No space left on device" in harness.text
        assert "begun" in harness.text
        assert ("it goes on" in harness.text) is (state is JobState.SUCCEEDED)
        assert "never" not in harness.text
        # Nothing of it is left to disturb the next one.
        assert (await harness.run("seq 100000 > file")).state is JobState.SUCCEEDED
