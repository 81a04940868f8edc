"""What every executor promises (`worker/executors/protocol.py`), each in its own language of steps."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, ServiceSpec
from solstice_orchestrator.domain.handing_spec import OutputSpec
from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason, StepCondition, StepSpec
from tests.builders import execution, job
from tests.executor_setups import KINDS, ExecutorSetup, backend_for, open_executor
from tests.servers.podman import SERVER


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExecutorSetup]:
    async with open_executor(request.param, tmp_path, backend_for(request.param, request)) as opened:
        yield opened


async def test_steps_run_in_order_their_output_is_logged_and_files_are_kept(subject: ExecutorSetup) -> None:
    # An environment is no reason to fail, either.
    second = StepSpec(name="step 2", run=subject.say("two"), env={"COLOUR": "blue", "EMPTY": ""})
    writes = 'echo "written=$SOLSTICE_OUTPUT_BEFORE_A_B" >> "$SOLSTICE_OUTPUT"' if subject.has_files else ""
    outcome, output = await subject.run(
        f"{subject.say('one')}\n{writes}",
        second,
        artifacts=(ArtifactSpec(name="files", path="file"),),
        outputs=(OutputSpec(name="version", text="v{file:file}"), OutputSpec(name="written")),
        given={"a.b": "of the other job"},
    )
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.SUCCEEDED, Reason.COMPLETED, 0), (
        outcome,
        output,
    )
    assert "$ step 1\none\n$ step 2\ntwo\n" in output
    assert (outcome.provisioning_seconds is not None) == subject.prepares
    expected = (("version", "vx"), ("written", "of the other job"))
    assert outcome.outputs == (expected if subject.has_files else ())
    assert [record.files for record in subject.records] == ([1] if subject.has_files else [])


async def test_a_failed_step_ends_the_job(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(
        subject.say("one"),
        StepSpec(name="breaks", run="exit 7"),
        subject.say("never"),
        artifacts=(ArtifactSpec(name="file", path="file"),),
    )
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert (outcome.exit_code, outcome.step) == (7, "breaks")
    assert "exit code 7" in outcome.detail
    assert "never" not in output
    assert subject.records == []


async def test_steps_run_as_their_conditions_say(subject: ExecutorSetup) -> None:
    tolerated = StepSpec(name="tolerated", run="exit 3", may_fail=True)
    left_out = StepSpec(name="left out", run="exit 9", when=StepCondition.NEVER, condition="event == 'tag'")
    logs = StepSpec(
        name="logs", run=subject.say("of a failure"), when=StepCondition.FAILED, condition="failed"
    )
    outcome, output = await subject.run(
        *(tolerated, left_out, StepSpec(name="breaks", run="exit 7"), subject.say("never"), logs),
        StepSpec(name="at last", run="exit 4", when=StepCondition.ALWAYS),
    )
    assert (outcome.state, outcome.exit_code, outcome.step) == (JobState.FAILED, 7, "breaks")
    assert (
        "$ tolerated\n! the step 'tolerated' ended with exit code 3; the job goes on (continue)\n"
        "- left out: not run, if=\"event == 'tag'\"\n$ breaks\n$ logs\nof a failure\n$ at last\n" in output
    )
    outcome, output = await subject.run(tolerated, logs)
    assert (outcome.state, outcome.exit_code) == (JobState.SUCCEEDED, 0)
    assert "(continue)\n- logs: not run" in output


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
