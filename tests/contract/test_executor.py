"""What every executor promises (`worker/executors/protocol.py`), each in its own language of steps."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.domain.jobs import Outcome, Reason, StepSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.worker.executors import Executor, make_executor
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.executors.vms.qemu_launcher import open_qemu
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.builders import execution, job, job_request
from tests.repositories import Repository
from tests.servers.podman import IMAGE, SERVER, PodmanStore, podman_store
from tests.servers.vm_image import vm_image, why_no_vm
from tests.vm_jobs import vm_rules


@dataclass(frozen=True, kw_only=True)
class ExecutorSetup:
    """An executor, a request that it can run, and the steps in its language."""

    executor: Executor
    request: JobRequestV1
    say: Callable[[str], str]
    hang: str
    moment: float = 0.5
    """Seconds within which a job that does not hang says something."""
    prepares: bool = False
    """Whether it makes a container or VM first."""
    beside: int = 5
    """How many jobs run at once in a test."""

    async def run(
        self,
        *runs: str | StepSpec,
        stop: asyncio.Event | None = None,
        seconds: float = 60.0,
        quiet: float | None = None,
    ) -> tuple[Outcome, str]:
        output: list[bytes] = []

        async def log(data: bytes) -> None:
            output.append(data)

        outcome = await self.executor.run(
            execution(job(*runs, timeout_seconds=seconds, no_output_seconds=quiet), self.request),
            log,
            stop or asyncio.Event(),
        )
        return outcome, b"".join(output).decode()


Backend = PodmanStore | Path | None
"""What an executor needs: a store of podman, or the image of a VM."""


@asynccontextmanager
async def open_executor(
    kind: str, directory: Path, backend: Backend, no_output_seconds: float = 0.0
) -> AsyncIterator[ExecutorSetup]:
    repository = Repository(directory / "repository")
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"file": "x"}))
    policy = GitPolicy(protocols=("file",))
    async with open_workspaces(directory / "work") as workspaces:
        match kind:
            case "podman":
                assert isinstance(backend, PodmanStore)
                executor = make_executor(
                    "podman",
                    workspaces=workspaces,
                    git=policy,
                    grace_seconds=0.2,
                    no_output_seconds=no_output_seconds,
                    launcher=await open_podman(backend.environment, CONTAINERS),
                )
                yield ExecutorSetup(
                    executor=executor,
                    request=request,
                    say=lambda text: f"echo {text}",
                    hang="sleep 1000",
                    prepares=True,
                    moment=10.0 if IN_GUEST else 2.0,
                    beside=2 if IN_GUEST else 5,
                )
            case "qemu":
                assert isinstance(backend, Path)
                executor = make_executor(
                    "qemu",
                    workspaces=workspaces,
                    git=policy,
                    grace_seconds=0.2,
                    no_output_seconds=no_output_seconds,
                    launcher=await open_qemu(vm_rules(backend), "tcg"),
                )
                yield ExecutorSetup(
                    executor=executor,
                    request=request,
                    say=lambda text: f"echo {text}",
                    hang="sleep 1000",
                    prepares=True,
                    # Its processors are simulated.
                    moment=3.0,
                    beside=2,
                )
            case "process":
                executor = make_executor(
                    "process",
                    workspaces=workspaces,
                    git=policy,
                    grace_seconds=0.2,
                    no_output_seconds=no_output_seconds,
                )
                yield ExecutorSetup(
                    executor=executor, request=request, say=lambda text: f"echo {text}", hang="sleep 1000"
                )
            case _:
                executor = make_executor(
                    "scripted", workspaces=workspaces, git=policy, no_output_seconds=no_output_seconds
                )
                yield ExecutorSetup(
                    executor=executor, request=request, say=lambda text: f"say {text}", hang="hang"
                )


IN_GUEST = os.environ.get("SOLSTICE_TEST_ROOTLESS") == "user"
"""Whether the processors of this machine are simulated (test_guest_limits.py)."""
CONTAINERS = ContainerRules(default_image=IMAGE, network=NetworkAccess.NONE)
KINDS = ["process", "podman", "qemu", "scripted"]


@pytest.fixture(scope="module")
def image_of_vms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On Debian as root it is made, so that CI runs this.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    return vm_image(tmp_path_factory.mktemp("vm") / "image")


@pytest.fixture(scope="module")
def podman_of_guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
    """A podman with the images of jobs and services alone: an import takes long there."""
    with podman_store(tmp_path_factory.mktemp("podman") / "store", (IMAGE, SERVER)) as store:
        yield store


def backend_for(kind: str, request: pytest.FixtureRequest) -> Backend:
    fixtures = {"podman": "podman_of_guest" if IN_GUEST else "podman", "qemu": "image_of_vms"}
    return request.getfixturevalue(fixtures[kind]) if kind in fixtures else None


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExecutorSetup]:
    async with open_executor(request.param, tmp_path, backend_for(request.param, request)) as opened:
        yield opened


async def test_steps_run_in_order_and_their_output_is_logged(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(subject.say("one"), subject.say("two"))
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.SUCCEEDED, Reason.COMPLETED, 0), (
        outcome,
        output,
    )
    assert "$ step 1\none\n$ step 2\ntwo\n" in output
    assert (outcome.provisioning_seconds is not None) == subject.prepares


async def test_a_failed_step_ends_the_job(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(
        subject.say("one"), StepSpec(name="breaks", run="exit 7"), subject.say("never")
    )
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert (outcome.exit_code, outcome.step) == (7, "breaks")
    assert "exit code 7" in outcome.detail
    assert "never" not in output


async def test_exit_0_ends_the_step_and_not_the_job(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(f"exit 0\n{subject.say('never')}", subject.say("next"))
    assert outcome.state is JobState.SUCCEEDED
    assert "never" not in output
    assert "next" in output


async def test_a_job_that_takes_too_long_times_out(subject: ExecutorSetup) -> None:
    outcome, _ = await subject.run(subject.say("one"), subject.hang, seconds=0.5)
    assert (outcome.state, outcome.reason) == (JobState.TIMED_OUT, Reason.JOB_TIMEOUT)
    assert "longer than 0.5 s" in outcome.detail


async def test_a_step_that_takes_too_long_times_out(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(
        StepSpec(name="slow", run=subject.hang, timeout_seconds=0.3), subject.say("never")
    )
    assert (outcome.state, outcome.reason) == (JobState.TIMED_OUT, Reason.STEP_TIMEOUT)
    assert outcome.step == "slow"
    assert "never" not in output


async def test_a_job_that_writes_nothing_for_too_long_times_out(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(subject.say("one"), subject.hang, quiet=subject.moment)
    assert (outcome.state, outcome.reason) == (JobState.TIMED_OUT, Reason.NO_OUTPUT)
    assert f"wrote nothing for {subject.moment:g} s" in outcome.detail
    assert "one" in output


@pytest.mark.parametrize("kind", KINDS)
async def test_the_operator_says_how_long_jobs_may_write_nothing_that_do_not_say_so(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    backend = backend_for(kind, request)
    async with open_executor(kind, tmp_path, backend, no_output_seconds=0.5) as subject:
        assert (await subject.run(subject.hang))[0].reason is Reason.NO_OUTPUT
        outcome, _ = await subject.run(subject.hang, quiet=1000, seconds=0.9)
        assert outcome.reason is Reason.JOB_TIMEOUT


async def test_a_log_that_is_slow_is_no_silence(subject: ExecutorSetup) -> None:
    is_running, free = asyncio.Event(), asyncio.Event()

    async def log(data: bytes) -> None:
        if b"begun" in data:
            is_running.set()
            await free.wait()

    spec = job(subject.say("begun"), no_output_seconds=subject.moment)
    task = asyncio.ensure_future(subject.executor.run(execution(spec, subject.request), log, asyncio.Event()))
    await is_running.wait()
    done, _ = await asyncio.wait([task], timeout=subject.moment + 0.5)
    assert not done
    free.set()
    assert (await task).state is JobState.SUCCEEDED


async def test_stop_cancels_a_running_job(subject: ExecutorSetup) -> None:
    stop, begun = asyncio.Event(), asyncio.Event()

    async def log(data: bytes) -> None:
        if b"begun" in data:
            begun.set()

    spec = job(f"{subject.say('begun')}\n{subject.hang}")
    task = asyncio.ensure_future(subject.executor.run(execution(spec, subject.request), log, stop))
    await begun.wait()
    stop.set()
    outcome = await task
    assert (outcome.state, outcome.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


async def test_stop_before_the_start_cancels_too(subject: ExecutorSetup) -> None:
    stop = asyncio.Event()
    stop.set()
    outcome, _ = await subject.run(subject.hang, stop=stop)
    assert (outcome.state, outcome.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


@pytest.mark.parametrize("waits", [False, True], ids=["runs", "waits for its log"])
async def test_a_cancelled_task_leaves_by_cancelled_error(subject: ExecutorSetup, *, waits: bool) -> None:
    begun = asyncio.Event()

    async def log(data: bytes) -> None:
        if b"begun" in data:
            begun.set()
            if waits:
                await asyncio.Event().wait()

    spec = job(f"{subject.say('begun')}\n{subject.hang}")
    task = asyncio.ensure_future(subject.executor.run(execution(spec, subject.request), log, asyncio.Event()))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_log_that_is_slow_loses_nothing(subject: ExecutorSetup) -> None:
    output: list[bytes] = []

    async def log(data: bytes) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        output.append(data)

    spec = job("\n".join(subject.say(f"line-{number}") for number in range(500)))
    outcome = await subject.executor.run(execution(spec, subject.request), log, asyncio.Event())
    assert outcome.state is JobState.SUCCEEDED
    lines = b"".join(output).decode().splitlines()
    assert [line for line in lines if line.startswith("line-")] == [f"line-{n}" for n in range(500)]


async def test_jobs_run_beside_each_other(subject: ExecutorSetup) -> None:
    stop = asyncio.Event()
    # It is stopped when the others have ended, however long their containers or VMs take.
    waiting = asyncio.ensure_future(subject.run(subject.hang, stop=stop, seconds=1000.0))
    ends = await asyncio.gather(
        *(subject.run(subject.say(f"number {n}"), f"exit {n}") for n in range(subject.beside))
    )
    assert [outcome.exit_code for outcome, _ in ends] == list(range(subject.beside))
    assert all(f"number {n}\n" in output for n, (_, output) in enumerate(ends))
    assert not waiting.done()
    stop.set()
    assert (await waiting)[0].state is JobState.CANCELLED


async def test_environment_is_no_reason_to_fail(subject: ExecutorSetup) -> None:
    step = StepSpec(name="with env", run=subject.say("x"), env={"COLOUR": "blue", "EMPTY": ""})
    assert (await subject.run(step))[0].state is JobState.SUCCEEDED


async def test_a_job_runs_beside_its_service_or_not_at_all(subject: ExecutorSetup) -> None:
    service = ServiceSpec(name="db", image=SERVER, env={"RUN": "echo the service runs; sleep 1000"})
    spec = job(subject.say("the job runs"), container=ContainerSpec(services=(service,)))
    words: dict[str, bytes] = {"": b"", "db": b""}

    async def log(data: bytes) -> None:
        words[""] += data

    async def service_log(name: str, data: bytes) -> None:
        words[name] += data

    attempt = replace(execution(spec, subject.request), service_log=service_log)
    outcome = await subject.executor.run(attempt, log, asyncio.Event())
    ran = b"the job runs\n" in words[""]
    assert ran == (outcome.state is JobState.SUCCEEDED)
    if ran:
        # The scripted executor simulates services as it simulates jobs.
        assert words["db"] in {b"the service runs\n", b""}
    else:
        assert outcome.reason is Reason.CONTAINER_REFUSED
        assert "services" in outcome.detail


@pytest.mark.parametrize(
    "container",
    [ContainerSpec(image="debian:12"), ContainerSpec(services=(ServiceSpec(name="db", image="x"),))],
)
async def test_process_never_runs_a_job_that_asks_for_a_container(
    tmp_path: Path, container: ContainerSpec
) -> None:
    async with open_executor("process", tmp_path, None) as subject:
        spec = job("touch ran", container=container)
        output: list[bytes] = []

        async def log(data: bytes) -> None:
            output.append(data)

        outcome = await subject.executor.run(execution(spec, subject.request), log, asyncio.Event())
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.CONTAINER_REFUSED)
        assert "EXECUTOR=process" in outcome.detail
        assert b"$ step" not in b"".join(output)
