"""An executor without processes for demos, tests and benches: steps say what happens.

A step's `run` is read line by line; each line is one word and its argument:

    say TEXT            write TEXT and a new line to the log
    raw HEX             write these bytes
    repeat COUNT TEXT   write TEXT that often, a line each
    sleep SECONDS       wait (a timeout, `stop` and a cancelled task end it, as they would a process)
    hang                wait forever
    exit CODE           end the step; anything but 0 fails the job
    error REASON        end the attempt with this infrastructure reason (`checkout_failed`, ...)
    crash TEXT          break the executor's promise: raise

Any other line is written to the log unchanged, and succeeds: a real workflow file runs here too.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Outcome, Reason, StepSpec
from solstice_orchestrator.domain.log_marks import StepMarks, went_on
from solstice_orchestrator.worker.executors.output_silence import OutputSilence
from solstice_orchestrator.worker.executors.protocol import Execution, LogWriter
from solstice_orchestrator.worker.executors.verdict import CANCELLED, silent

_COMMAND: Final = re.compile(
    r"say ?(?P<say>.*)|raw (?P<raw>(?:[0-9a-fA-F]{2})+)|repeat (?P<repeat>[0-9]{1,7} .*)"
    r"|sleep (?P<sleep>[0-9]{1,6}(?:\.[0-9]+)?)|(?P<hang>hang)|exit (?P<exit>[0-9]{1,3})"
    r"|error (?P<error>[a-z_]+)|crash ?(?P<crash>.*)"
)

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds of real or simulated time."""


class ScriptedCrash(RuntimeError):
    """A script asked for a crash of the executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedExecutor:
    """Simulates jobs instead of running processes."""

    isolates: bool = True
    no_output_seconds: float = 0.0
    """How long a job without its own limit may write nothing; 0: without a limit."""
    sleep: Sleep = asyncio.sleep

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        silence, quiet = OutputSilence(), execution.spec.no_output_seconds or self.no_output_seconds

        async def on_output(data: bytes) -> None:
            with silence.broken():
                await log(data)

        running = asyncio.create_task(
            _run_steps(execution, on_output, self.sleep), name=f"run {execution.spec.name}"
        )
        stopping = asyncio.create_task(stop.wait(), name=f"stop of {execution.spec.name}")
        hearing = asyncio.create_task(silence.lasts(quiet), name=f"silence of {execution.spec.name}")
        try:
            await asyncio.wait(
                [running, stopping, hearing],
                timeout=execution.spec.timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if running.done():
                return running.result()
            if stop.is_set():
                return CANCELLED
            if hearing.done():
                return silent(quiet)
            return Outcome(
                state=JobState.TIMED_OUT,
                reason=Reason.JOB_TIMEOUT,
                detail=f"the job ran longer than {execution.spec.timeout_seconds:g} s",
            )
        finally:
            for task in (running, stopping, hearing):
                task.cancel()
            await asyncio.wait([running, stopping, hearing])


async def _run_steps(execution: Execution, log: LogWriter, sleep: Sleep) -> Outcome:
    marks, failure = StepMarks(execution.spec.steps), None
    for number, step in enumerate(execution.spec.steps):
        if not step.when.allows(failed=failure is not None):
            continue
        for mark in marks.beginning(number):
            await log(mark)
        outcome = await _limited_step(step, log, sleep)
        if outcome is None:
            continue
        if outcome.reason in INFRASTRUCTURE:
            return outcome
        if step.may_fail:
            await log(went_on(outcome.detail))
        else:
            failure = failure or outcome
    for mark in marks.rest():
        await log(mark)
    return failure or Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


async def _limited_step(step: StepSpec, log: LogWriter, sleep: Sleep) -> Outcome | None:
    """Run a step within its time limit."""
    try:
        async with asyncio.timeout(step.timeout_seconds):
            return await _step(step, log, sleep)
    except TimeoutError:
        return Outcome(
            state=JobState.TIMED_OUT,
            reason=Reason.STEP_TIMEOUT,
            step=step.name,
            detail=f"the step {step.name!r} ran longer than {step.timeout_seconds:g} s",
        )


async def _step(step: StepSpec, log: LogWriter, sleep: Sleep) -> Outcome | None:
    """Run a step; return the job's outcome, or None when the next step may begin."""
    for line in step.run.splitlines():
        match _COMMAND.fullmatch(line.strip()):
            case re.Match(lastgroup="sleep") as command:
                await sleep(float(command["sleep"]))
            case re.Match(lastgroup="hang"):
                await asyncio.Event().wait()
            case re.Match(lastgroup="crash") as command:
                raise ScriptedCrash(command["crash"])
            case re.Match(lastgroup="exit") as command:
                return _exited(step, int(command["exit"]))
            case re.Match(lastgroup="error") as command if command["error"] in INFRASTRUCTURE:
                return Outcome(
                    state=JobState.ERRORED,
                    reason=Reason(command["error"]),
                    step=step.name,
                    detail="as scripted",
                )
            case spoken:
                for output in _spoken(line, spoken):
                    await log(output)
    return None


def _spoken(line: str, command: re.Match[str] | None) -> Iterator[bytes]:
    """Yield the output of one line of a script."""
    match command:
        case re.Match(lastgroup="say"):
            yield command["say"].encode() + b"\n"
        case re.Match(lastgroup="raw"):
            yield bytes.fromhex(command["raw"])
        case re.Match(lastgroup="repeat"):
            count, _, text = command["repeat"].partition(" ")
            for _number in range(int(count)):
                yield text.encode() + b"\n"
        case _:
            yield line.encode() + b"\n"


def _exited(step: StepSpec, code: int) -> Outcome | None:
    if code == 0:
        return None
    return Outcome(
        state=JobState.FAILED,
        reason=Reason.STEP_FAILED,
        exit_code=code,
        step=step.name,
        detail=f"the step {step.name!r} ended with exit code {code}",
    )
