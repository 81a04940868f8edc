"""What a job is and which lives it may lead: states, reasons and the one table of transitions. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from solstice_common.messages import Priority
from solstice_common.messages.states import FINAL, JobState, RunState


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
    RETRYING = "retrying"
    """It failed, and its author gave it another try (`retries`)."""
    CONCURRENCY_GROUP = "concurrency_group"
    """Another run or job of its concurrency group goes first."""
    # the job's own end
    COMPLETED = "completed"
    STEP_FAILED = "step_failed"
    JOB_TIMEOUT = "job_timeout"
    STEP_TIMEOUT = "step_timeout"
    NO_OUTPUT = "no_output"
    """It wrote nothing for longer than it may."""
    RUN_TIMEOUT = "run_timeout"
    """The whole run took longer than it may, this job running or not."""
    CANCEL_REQUESTED = "cancel_requested"
    SECRET_MISSING = "secret_missing"  # noqa: S105  a reason, not a secret
    """It names a secret that is not given to it."""
    SUPERSEDED = "superseded"
    """A newer run, named in the detail, took its place."""
    NEEDS_FAILED = "needs_failed"
    # the request cannot become jobs, now or later: its run ends as ERRORED
    INVALID_WORKFLOW = "invalid_workflow"
    COMMIT_NOT_FOUND = "commit_not_found"
    """The repository, or the commit in it, is not there, or not by a protocol we may use."""
    COMMIT_UNUSABLE = "commit_unusable"
    """The commit itself prevents its checkout: its size, its file names, or objects that git refuses."""
    NOT_TRUSTED = "not_trusted"
    """A stranger's code, and no executor here that isolates (setting `UNTRUSTED_RUNS`)."""
    # the world's failures: retried, within a budget
    AGENT_LOST = "agent_lost"
    LEASE_EXPIRED = "lease_expired"
    PROVISION_FAILED = "provision_failed"
    CHECKOUT_FAILED = "checkout_failed"
    EXECUTOR_FAILED = "executor_failed"
    MACHINE_FAILED = "machine_failed"
    """The worker's machine lacks disk, memory, processes, descriptors or git; it does not count as an attempt."""
    HOST_AWAY = "host_away"
    """Its git host did not answer others a moment ago, and was not asked again; it does not count as an attempt."""


INFRASTRUCTURE: Final = frozenset(
    {
        Reason.AGENT_LOST,
        Reason.LEASE_EXPIRED,
        Reason.PROVISION_FAILED,
        Reason.CHECKOUT_FAILED,
        Reason.EXECUTOR_FAILED,
        Reason.MACHINE_FAILED,
        Reason.HOST_AWAY,
    }
)
"""The only reasons for which we run a job again by ourselves."""

UNCOUNTED: Final = frozenset({Reason.MACHINE_FAILED, Reason.HOST_AWAY})
"""Those that spend none of its attempts."""

OWN_FAILURES: Final = frozenset(
    {Reason.STEP_FAILED, Reason.JOB_TIMEOUT, Reason.STEP_TIMEOUT, Reason.NO_OUTPUT}
)
"""What the job did itself: the only reasons for which its author's `retries` are spent."""

MAX_ATTEMPTS: Final = 3
"""How often the world may fail one job."""

_NOWHERE: Final = frozenset[JobState]()
_ENDED_FROM_OUTSIDE: Final = frozenset({JobState.CANCELLED, JobState.TIMED_OUT})
"""What may end a job in whatever state it is: a person or a newer run, and the time limit of its run."""

TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        JobState.BLOCKED: frozenset({JobState.WAITING, JobState.SKIPPED}) | _ENDED_FROM_OUTSIDE,
        JobState.APPROVAL: frozenset({JobState.WAITING, JobState.BLOCKED, JobState.SKIPPED})
        | _ENDED_FROM_OUTSIDE,
        JobState.WAITING: frozenset({JobState.RUNNING, JobState.SKIPPED}) | _ENDED_FROM_OUTSIDE,
        JobState.BACKOFF: frozenset({JobState.WAITING}) | _ENDED_FROM_OUTSIDE,
        JobState.RUNNING: FINAL - {JobState.SKIPPED} | {JobState.WAITING, JobState.BACKOFF},
    }
)
"""From where to where; a final state leads nowhere."""


def may_move(old: JobState, new: JobState) -> bool:
    """Whether the table allows it."""
    return new in TRANSITIONS.get(old, _NOWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One command of a job, run by `sh -eu`-like rules of the executor, in the workspace."""

    name: str
    run: str
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    timeout_seconds: float | None = None
    secrets: tuple[str, ...] = ()
    """Names of what it finds in its environment beside that; the values are known to no one before it runs."""


class JobCondition(StrEnum):
    """When a job may start that needs others: what its `if` says."""

    SUCCESS = "success"
    """All of them succeeded."""
    ALWAYS = "always"
    """All of them have ended, however; not when the whole run was ended from outside."""


class GroupMode(StrEnum):
    """What becomes of those that hold a concurrency group, or wait for it, when somebody new asks for it."""

    QUEUE = "queue"
    """They go first."""
    CANCEL = "cancel"
    """They are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """A group of which one holder runs at a time; names are per repository."""

    group: str
    mode: GroupMode = GroupMode.QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a workflow file says about the run as a whole."""

    timeout_seconds: float | None = None
    """From the moment the run has jobs until the last of them has ended, waiting included; None: no limit."""
    concurrency: Concurrency | None = None
    """Held by the run, from its first job to its last."""
    supersede: bool | None = None
    """Whether a newer push ends this run; None: as the operator has it, and never on the default branch."""


DEFAULT_RUN_SPEC: Final = RunSpec()


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
    condition: JobCondition = JobCondition.SUCCESS
    retries: int = 0
    """Its author's own budget of further tries, for `OWN_FAILURES`."""
    no_output_seconds: float | None = None
    """How long it may write nothing; None: as the operator has it."""
    concurrency: Concurrency | None = None
    """Held by this job while it waits for a slot and runs."""
    secrets: tuple[str, ...] = ()
    """Names of those that every step is given."""
    matrix: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Which of the jobs of a matrix this is: a value per axis; empty for a job without a matrix."""


def named_secrets(spec: JobSpec) -> frozenset[str]:
    """All that the job or one of its steps names."""
    return frozenset(spec.secrets).union(*(step.secrets for step in spec.steps))


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
    return _combined_state(frozenset(states))


# There are few such sets, however many jobs.
@lru_cache(maxsize=256)
def _combined_state(states: frozenset[JobState]) -> RunState:
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
