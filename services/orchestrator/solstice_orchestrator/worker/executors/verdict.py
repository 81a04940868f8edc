"""Read a supervisor's verdict on a job, and derive the outcome. Pure.

A job that is not isolated may have forged a verdict, so none of its outcomes here has an infrastructure reason.
"""

import json
import signal
from dataclasses import dataclass
from typing import Final, Literal, get_args

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason

EndKind = Literal["completed", "failed", "timed_out", "stopped", "unstartable", "vanished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorVerdict:
    """How the steps ended; `vanished` when the supervisor ended without a verdict."""

    how: EndKind
    step: int | None = None
    """Counts from 0."""
    status: int = 0
    """The exit code of the step's shell, or the negative number of its signal."""
    scope: Literal["job", "step"] = "job"
    detail: str = ""


VANISHED: Final = SupervisorVerdict(how="vanished")
CANCELLED: Final = Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)
"""Without a detail: the store records who cancelled the job and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNews:
    """A step waits to begin, or has failed without ending the job."""

    number: int
    failure: SupervisorVerdict | None = None
    """None: it waits to begin."""


def step_news(line: bytes) -> StepNews | None:
    """Return what a line says of a step; None for any other line."""
    try:
        record = json.loads(line)
        match record["event"]:
            case "step":
                return StepNews(number=int(record["number"]))
            case "failed":
                failure = read_verdict(line, event="failed")
                return StepNews(number=int(record["step"]), failure=failure)
            case _:
                return None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def read_verdict(words: bytes, *, event: str = "end") -> SupervisorVerdict:
    """Parse the supervisor's last line; return VANISHED when it is no verdict."""
    try:
        record = json.loads(words.splitlines()[-1])
        if record["event"] != event or record["how"] not in get_args(EndKind):
            return VANISHED
        return SupervisorVerdict(
            how=record["how"],
            step=None if record.get("step") is None else int(record["step"]),
            status=int(record.get("status", 0)),
            scope="step" if record.get("scope") == "step" else "job",
            detail=str(record.get("detail", ""))[:500],
        )
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return VANISHED


def silent(seconds: float) -> Outcome:
    """Return the outcome of a job that wrote nothing for too long."""
    return Outcome(
        state=JobState.TIMED_OUT,
        reason=Reason.NO_OUTPUT,
        detail=f"the job wrote nothing for {seconds:g} s",
    )


def to_outcome(
    verdict: SupervisorVerdict, spec: JobSpec, *, requested: Outcome | None, isolated: bool = False
) -> Outcome:
    """Return the outcome of the attempt.

    `requested` is its outcome if it ended because the orchestrator asked the supervisor to end it. Where it was
    `isolated` from its supervisor, only the world can have killed that, or a process that waits for one of its steps.
    """
    step = (
        spec.steps[verdict.step] if verdict.step is not None and 0 <= verdict.step < len(spec.steps) else None
    )
    shown = f"the step {step.name!r}" if step else "the job"
    if requested and verdict.how in {"stopped", "vanished"}:
        return requested
    match verdict.how:
        case "completed":
            return Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)
        case "timed_out" if verdict.scope == "step" and step and step.timeout_seconds is not None:
            state, reason, code = JobState.TIMED_OUT, Reason.STEP_TIMEOUT, None
            detail = f"{shown} ran longer than {step.timeout_seconds:g} s"
        case "timed_out":
            state, reason, code = JobState.TIMED_OUT, Reason.JOB_TIMEOUT, None
            detail = f"the job ran longer than {spec.timeout_seconds:g} s"
        case "failed" if isolated and step and verdict.status < 0:
            # The step itself is in its container or VM. Here a process waits for it, which no job reaches.
            return Outcome(
                state=JobState.ERRORED,
                reason=Reason.EXECUTOR_FAILED,
                detail=f"the process that waits for {shown} {_ended(verdict.status)}",
            )
        case "failed":
            state, reason = JobState.FAILED, Reason.STEP_FAILED
            # As shells do it: 128 plus the number of the signal.
            code = verdict.status if verdict.status >= 0 else 128 - verdict.status
            detail = f"{shown} {_ended(verdict.status)}"
        case "unstartable":
            state, reason, code = JobState.FAILED, Reason.STEP_FAILED, None
            detail = f"{shown} could not be started: {verdict.detail}"
        case _ if isolated:
            return Outcome(
                state=JobState.ERRORED,
                reason=Reason.EXECUTOR_FAILED,
                detail="the supervisor of the job was killed",
            )
        case _:
            state, reason, code = JobState.FAILED, Reason.STEP_FAILED, None
            detail = "the supervisor of the job's processes was killed: by the job, or for lack of memory"
    return Outcome(
        state=state, reason=reason, exit_code=code, step=step.name if step else None, detail=detail
    )


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
