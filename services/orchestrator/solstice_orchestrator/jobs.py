"""What a job is and which lives it may lead: states, reasons and the one table of transitions. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from solstice_common.messages import Priority


class JobState(StrEnum):
    """Where a job is in its life (DESIGN section 7)."""

    BLOCKED = "blocked"
    """Waits for the jobs it `needs`."""
    WAITING = "waiting"
    """Could start as soon as a slot of its label is free."""
    BACKOFF = "backoff"
    """The world was wrong; waits until `retry_at`."""
    APPROVAL = "approval"
    """Waits for a person's word."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The job itself said no: a step ended with a non-zero exit code."""
    ERRORED = "errored"
    """We could not run it, however often we tried, or its workflow is wrong."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    """Something it needs did not succeed."""

    @property
    def final(self) -> bool:
        return self in FINAL


class RunState(StrEnum):
    """What the jobs of a run amount to."""

    PLANNING = "planning"
    """Accepted and stored; its workflow has not been read yet."""
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        return self not in {RunState.PLANNING, RunState.WAITING, RunState.RUNNING}


class Reason(StrEnum):
    """Why a job made a transition; a closed list."""

    # towards running
    PLANNED = "planned"
    NEEDS_MET = "needs_met"
    APPROVED = "approved"
    CLAIMED = "claimed"
    BACKOFF_OVER = "backoff_over"
    RELEASED = "released"
    """Handed back unfinished by an orchestrator that shuts down; does not count as an attempt."""
    # the job's own end
    COMPLETED = "completed"
    STEP_FAILED = "step_failed"
    JOB_TIMEOUT = "job_timeout"
    STEP_TIMEOUT = "step_timeout"
    CANCEL_REQUESTED = "cancel_requested"
    NEEDS_FAILED = "needs_failed"
    # the request cannot become jobs, now or later: its run ends as ERRORED
    INVALID_WORKFLOW = "invalid_workflow"
    COMMIT_NOT_FOUND = "commit_not_found"
    """The repository, or the commit in it, is not there, or not by a protocol we may use."""
    NOT_TRUSTED = "not_trusted"
    """A stranger's code, and no executor here that isolates (setting `UNTRUSTED_RUNS`)."""
    # the world's failures: retried, within a budget
    AGENT_LOST = "agent_lost"
    LEASE_EXPIRED = "lease_expired"
    PROVISION_FAILED = "provision_failed"
    CHECKOUT_FAILED = "checkout_failed"
    EXECUTOR_FAILED = "executor_failed"


FINAL: Final = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.ERRORED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.SKIPPED,
    }
)

INFRASTRUCTURE: Final = frozenset(
    {
        Reason.AGENT_LOST,
        Reason.LEASE_EXPIRED,
        Reason.PROVISION_FAILED,
        Reason.CHECKOUT_FAILED,
        Reason.EXECUTOR_FAILED,
    }
)
"""The only reasons for which we run a job again by ourselves."""

MAX_ATTEMPTS: Final = 3

TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        JobState.BLOCKED: frozenset({JobState.WAITING, JobState.SKIPPED, JobState.CANCELLED}),
        JobState.APPROVAL: frozenset(
            {JobState.WAITING, JobState.BLOCKED, JobState.CANCELLED, JobState.SKIPPED}
        ),
        JobState.WAITING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.SKIPPED}),
        JobState.BACKOFF: frozenset({JobState.WAITING, JobState.CANCELLED}),
        JobState.RUNNING: FINAL - {JobState.SKIPPED} | {JobState.WAITING, JobState.BACKOFF},
    }
)
"""From where to where; a final state leads nowhere."""


def may_move(old: JobState, new: JobState) -> bool:
    """Whether the table allows it."""
    return new in TRANSITIONS.get(old, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One command of a job, run by `sh -eu`-like rules of the executor, in the workspace."""

    name: str
    run: str
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One node of a workflow, as planned: everything an executor needs beside the request."""

    name: str
    """Unique in its run; what `workflow_job_id` and `needs` name."""
    runs_on: str
    steps: tuple[StepSpec, ...]
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    timeout_seconds: float = 3600.0
    priority: Priority = Priority.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended. `state` is final, or WAITING (released), or RUNNING never.

    An infrastructure `reason` is never derived from anything the job printed or returned.
    """

    state: JobState
    reason: Reason
    exit_code: int | None = None
    step: str | None = None
    detail: str = ""


def run_state(states: Collection[JobState]) -> RunState:
    """What a planned run's jobs amount to: unfinished while one is, else the worst of their ends."""
    if any(not state.final for state in states):
        started = any(state is JobState.RUNNING or state.final for state in states)
        return RunState.RUNNING if started else RunState.WAITING
    for worst in (
        JobState.ERRORED,
        JobState.FAILED,
        JobState.TIMED_OUT,
        JobState.CANCELLED,
        JobState.SUCCEEDED,
    ):
        if worst in states:
            return RunState(worst.value)
    return RunState.SKIPPED
