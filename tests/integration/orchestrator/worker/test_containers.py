"""Jobs in containers of a real podman: what they can do, and how they end."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, PullPolicy
from solstice_orchestrator.domain.jobs import Reason, StepSpec
from solstice_orchestrator.processes import container_step
from solstice_orchestrator.processes.egress import egress_proxy
from solstice_orchestrator.processes.supervisor import descendants, process_ids
from solstice_orchestrator.worker.executors import process
from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from solstice_orchestrator.worker.executors.containers.left_containers import left_containers
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.container_jobs import ContainerJobs, container_jobs
from tests.escapes import CONTROL, succeeded, tried
from tests.executor_harness import runs
from tests.polling import wait_until
from tests.servers.podman import IMAGE, NO_SHELL, SHELL_ONLY, PodmanStore

GROWS = "x=a; while :; do x=$x$x; done"


@pytest.fixture
async def jobs(podman: PodmanStore, tmp_path: Path) -> AsyncIterator[ContainerJobs]:
    async with container_jobs(podman, tmp_path, AMQP_URL="amqp://u:planted@h") as opened:
        yield opened


async def test_steps_share_one_container_with_the_commit_and_one_log_in_order(jobs: ContainerJobs) -> None:
    writes = "for i in $(seq 200); do echo out-$i; echo err-$i >&2; done"
    outcome = await jobs.run(
        "cat hello.txt; echo kept > /tmp/kept; (sleep 1000 &) ; echo $SOLSTICE_STEP; pwd",
        StepSpec(name="it's", run=f"cat /tmp/kept\n{writes}", env={"QUOTED": "a'b\n$(id)"}),
        'echo "bash ${BASH_VERSION:+yes}"; kill -0 $(grep -l sleep /proc/[0-9]*/comm | grep -o "[0-9]*" | head -1); false | true',
    )
    lines = jobs.text.splitlines()
    assert outcome.exit_code == 1
    assert {"hello", "step 1", "/workspace", "kept", "bash yes"} <= set(lines)
    wrote = [line for line in lines if line.startswith(("out-", "err-"))]
    assert wrote == [f"{kind}-{number}" for number in range(1, 201) for kind in ("out", "err")]


async def test_variables_and_secrets_arrive_unchanged_and_no_program_here_obeys_them(
    jobs: ContainerJobs, tmp_path: Path
) -> None:
    loud = tmp_path / "loud"
    env = {
        "VALUE": "a'b\"c\n$(id)`id` é",
        "LD_PRELOAD": "/nowhere.so",
        "CONTAINERS_CONF": str(loud),
        "PATH": "/bin",
    }
    step = StepSpec(name="env", run='printf "<%s>" "$VALUE"; echo; env', env=env)
    assert (await jobs.run(step)).state is JobState.SUCCEEDED
    assert "<a'b\"c\n$(id)`id` é>" in jobs.text
    assert f"CONTAINERS_CONF={loud}" in jobs.text
    assert "planted" not in jobs.text
    assert "JOB_" not in jobs.text.replace("SOLSTICE_JOB_", "")


async def test_an_image_needs_a_shell_alone_and_one_without_it_is_the_jobs_failure(
    jobs: ContainerJobs,
) -> None:
    outcome = await jobs.run(
        "echo it is ${BASH_VERSION:-sh}; exit 3", container=ContainerSpec(image=SHELL_ONLY)
    )
    assert outcome.exit_code == 3
    assert "it is sh" in jobs.text
    outcome = await jobs.run("true", container=ContainerSpec(image=NO_SHELL))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.IMAGE_UNAVAILABLE)
    assert "has no /bin/sh" in outcome.detail


async def test_an_image_that_is_not_there_is_the_jobs_failure_and_a_dead_registry_the_worlds(
    jobs: ContainerJobs,
) -> None:
    never = ContainerSpec(image="localhost/missing:1", pull=PullPolicy.NEVER)
    outcome = await jobs.run("true", container=never)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.IMAGE_UNAVAILABLE)
    outcome = await jobs.run("true", container=ContainerSpec(image="127.0.0.1:1/missing:1"))
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)


async def test_a_job_without_enough_memory_fails_for_that(jobs: ContainerJobs) -> None:
    outcome = await jobs.run("true", GROWS)
    assert (outcome.state, outcome.reason, outcome.step) == (JobState.FAILED, Reason.OUT_OF_MEMORY, "step 2")
    assert "64 MiB" in outcome.detail
    # Also where the program that was killed is a child, and what the job returns says nothing.
    outcome = await jobs.outcome_of(f"bash -c '{GROWS}' || {{ echo killed $EPOCHREALTIME; exit 3; }}")
    ended = time.time()
    assert (outcome.reason, outcome.exit_code) == (Reason.OUT_OF_MEMORY, 3)
    (killed,) = re.findall(r"^killed (\S+)$", jobs.text, re.MULTILINE)
    # With the removal of its container, before which no outcome is told.
    assert ended - float(killed) < 2


async def test_a_job_has_no_more_processes_than_it_may(jobs: ContainerJobs) -> None:
    outcome = await jobs.run("exec sh -c 'for i in $(seq 500); do sleep 1000 & done'")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert "fork" in jobs.text


async def test_no_attempt_to_leave_the_container_succeeds(jobs: ContainerJobs) -> None:
    tries = [StepSpec(name=f"try {number}", run=each) for number, each in enumerate(tried())]
    outcome = await jobs.run(*tries, container=ContainerSpec(image=IMAGE, network=NetworkAccess.NONE))
    assert succeeded(jobs.text) == [CONTROL]
    assert outcome.state is JobState.SUCCEEDED


async def test_nothing_that_a_job_forges_passes_for_the_worlds_failure(jobs: ContainerJobs) -> None:
    forged = """
    for fd in /proc/1/fd/1 /proc/1/fd/0; do
      echo '{"event": "end", "how": "unstartable"}' > $fd; echo 'solstice start 125' > $fd; echo 'solstice 0 nonsense' > $fd
    done
    exit 7
    """
    outcome = await jobs.run(forged)
    assert outcome.state is JobState.FAILED
    assert outcome.reason is Reason.STEP_FAILED
    for kills in (
        "kill -9 -1; kill -9 1; exit 9",
        "kill -9 $$",
        "kill 1; exit 3",
        "echo exit 9 > /proc/1/fd/0; exit 9",
    ):
        outcome = await jobs.run(kills)
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    for code in (125, 126, 127, 255, 137):
        outcome = await jobs.run(f"exit {code}")
        assert (outcome.state, outcome.reason, outcome.exit_code) == (
            JobState.FAILED,
            Reason.STEP_FAILED,
            code,
        )


async def test_a_container_whose_monitor_is_killed_goes_on_and_is_removed(jobs: ContainerJobs) -> None:
    stop = asyncio.Event()
    running = asyncio.ensure_future(jobs.run("echo begun; sleep 1; echo went on", stop=stop))
    await wait_until(lambda: "begun" in jobs.text)
    os.kill(_monitor(), signal.SIGKILL)
    outcome = await running
    assert outcome.state is JobState.SUCCEEDED
    assert "went on" in jobs.text


@pytest.mark.parametrize("part", ["supervisor", "step"])
async def test_a_killed_part_of_a_container_is_the_worlds_failure(
    jobs: ContainerJobs, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(process, "ESCAPED_OUTPUT_SECONDS", 0.2)
    running = asyncio.ensure_future(jobs.run("echo begun; sleep 1000"))
    await wait_until(lambda: "begun" in jobs.text)
    os.kill(_parent(_monitor()) if part == "supervisor" else runs(container_step), signal.SIGKILL)
    outcome = await running
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.EXECUTOR_FAILED)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _monitor() -> int:
    """The process id of conmon below this process."""
    (found,) = [
        pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().strip() == "conmon"
    ]
    return found


async def test_what_a_killed_orchestrator_leaves_is_gone_after_the_next_start(
    jobs: ContainerJobs, podman: PodmanStore, tmp_path: Path
) -> None:
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.container_peer"),
        *(str(tmp_path / "other"), jobs.request.repo_url, jobs.request.commit_sha),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **podman.environment},
    )
    assert peer.stdout is not None
    while b"begun" not in await peer.stdout.readline():
        pass
    proxy = runs(egress_proxy)
    peer.kill()
    await peer.wait()
    await wait_until(lambda: proxy not in process_ids())
    left, service = sorted(podman.containers())
    assert service == f"{left}-db"
    assert podman.volumes() != []
    (place,) = [path for path in (tmp_path / "other").iterdir() if path.is_dir()]
    assert groups_left(place.name) != []
    # As every start does, with any executor.
    async with open_workspaces(tmp_path / "other", left_containers(podman.environment).remove):
        assert {left, service}.isdisjoint(podman.containers())
        assert podman.volumes() == []
        assert podman.mounts() == []
        assert groups_left(place.name) == []
        assert not place.exists()
