"""What a job is: states, reasons and the table of allowed transitions. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from solstice_common.messages import Priority
from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.domain.container_spec import ANY_CONTAINER, ContainerSpec
from solstice_orchestrator.domain.handing_spec import (
    HandedArtifact,
    NeededArtifact,
    NeededOutput,
    OutputSpec,
)
from solstice_orchestrator.reports.values import StatusTests


class Reason(StrEnum):
    """Why a job made a transition; a closed list."""

    # on the way to running
    PLANNED = "planned"
    NEEDS_MET = "needs_met"
    APPROVED = "approved"
    CLAIMED = "claimed"
    BACKOFF_OVER = "backoff_over"
    RELEASED = "released"
    """An orchestrator that shuts down gave it back unfinished; does not count as an attempt."""
    RETRYING = "retrying"
    """It failed, and its workflow file allows another try (`retries`)."""
    CONCURRENCY_GROUP = "concurrency_group"
    """Another run or job of its concurrency group goes first."""
    # the job's own end
    COMPLETED = "completed"
    STEP_FAILED = "step_failed"
    JOB_TIMEOUT = "job_timeout"
    STEP_TIMEOUT = "step_timeout"
    NO_OUTPUT = "no_output"
    """It wrote no output for longer than the limit."""
    RUN_TIMEOUT = "run_timeout"
    """The whole run exceeded its time limit, whether this job was running or not."""
    CANCEL_REQUESTED = "cancel_requested"
    SECRET_MISSING = "secret_missing"  # noqa: S105  a reason, not a secret
    """It names a secret that is not given to it."""
    CONTAINER_REFUSED = "container_refused"
    """It asks for an image, a network or a size that its worker does not give."""
    IMAGE_UNAVAILABLE = "image_unavailable"
    """Its image does not exist, may not be fetched, or has no shell."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel ended processes of it: they needed more memory than it may use."""
    OUT_OF_DISK = "out_of_disk"
    """Its files needed more disk space than it may use."""
    SERVICE_DIED = "service_died"
    """A service of it ended before the job did."""
    SERVICE_NOT_READY = "service_not_ready"
    """A service of it was not ready in time."""
    ARTIFACT_REFUSED = "artifact_refused"
    """Its steps succeeded, but the files of an artifact are missing, too large, or no plain files."""
    ARTIFACT_NOT_STORED = "artifact_not_stored"
    """Its steps succeeded, but there was no room for an artifact, or the directory failed."""
    ARTIFACT_MISSING = "artifact_missing"
    """An artifact that it needs was never made, or has expired."""
    OUTPUT_REFUSED = "output_refused"
    """Its steps succeeded, but an output is missing, no text, too long, or has a secret in it."""
    ARTIFACT_NOT_PLACED = "artifact_not_placed"
    """Something in its workspace is in the way of an artifact that it needs."""
    REPORT_UNUSABLE = "report_unusable"
    """Its steps succeeded, but a test report that it requires is missing, has no test, or cannot be read."""
    SUPERSEDED = "superseded"
    """A newer run, named in the detail, replaced it."""
    NEEDS_FAILED = "needs_failed"
    CONDITION_UNMET = "condition_unmet"
    """Its `if` leaves it out of this run."""
    EVENT_NOT_BUILT = "event_not_built"
    """The workflow file's `on` does not name what happened: its run ends as SKIPPED, without jobs."""
    # the request cannot become jobs, now or later: its run ends as ERRORED
    INVALID_WORKFLOW = "invalid_workflow"
    COMMIT_NOT_FOUND = "commit_not_found"
    """The repository or the commit does not exist, or its protocol is not allowed."""
    COMMIT_UNUSABLE = "commit_unusable"
    """The commit cannot be checked out: its size, its file names, or objects that git refuses."""
    NOT_TRUSTED = "not_trusted"
    """The code is untrusted, and the operator does not let it run here (setting `UNTRUSTED_RUNS`)."""
    # infrastructure failures: retried, within a budget
    AGENT_LOST = "agent_lost"
    LEASE_EXPIRED = "lease_expired"
    PROVISION_FAILED = "provision_failed"
    CHECKOUT_FAILED = "checkout_failed"
    ARTIFACT_UNAVAILABLE = "artifact_unavailable"
    """The archive of an artifact that it needs is not there, or damaged."""
    EXECUTOR_FAILED = "executor_failed"
    MACHINE_FAILED = "machine_failed"
    """The worker's machine lacks disk, memory, processes, descriptors or git; does not count as an attempt."""
    HOST_AWAY = "host_away"
    """Its git host failed for other jobs a moment ago, so it was not asked; does not count as an attempt."""


INFRASTRUCTURE: Final = frozenset(
    {
        Reason.AGENT_LOST,
        Reason.LEASE_EXPIRED,
        Reason.PROVISION_FAILED,
        Reason.CHECKOUT_FAILED,
        Reason.ARTIFACT_UNAVAILABLE,
        Reason.EXECUTOR_FAILED,
        Reason.MACHINE_FAILED,
        Reason.HOST_AWAY,
    }
)
"""The only reasons for which the orchestrator retries a job by itself."""

UNCOUNTED: Final = frozenset({Reason.MACHINE_FAILED, Reason.HOST_AWAY})
"""Infrastructure reasons that do not count as an attempt."""

OWN_FAILURES: Final = frozenset(
    {
        Reason.STEP_FAILED,
        Reason.JOB_TIMEOUT,
        Reason.STEP_TIMEOUT,
        Reason.NO_OUTPUT,
        Reason.OUT_OF_MEMORY,
        Reason.OUT_OF_DISK,
        Reason.SERVICE_DIED,
        Reason.SERVICE_NOT_READY,
    }
)
"""Failures of the job itself: the only reasons that use its author's `retries`."""

MAX_ATTEMPTS: Final = 3
"""Counted attempts that one job may have."""

_NOWHERE: Final = frozenset[JobState]()
_ENDED_FROM_OUTSIDE: Final = frozenset({JobState.CANCELLED, JobState.TIMED_OUT})
"""Ends that any unfinished job may have: by a person, a newer run, or a time limit."""

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
"""Allowed new states by old state; a final state has none."""


def may_move(old: JobState, new: JobState) -> bool:
    """Return whether `TRANSITIONS` allows the move."""
    return new in TRANSITIONS.get(old, _NOWHERE)


class StepCondition(StrEnum):
    """After what a step runs: its `if`, with what is true of the run."""

    SUCCESS = "success"
    """No step before it has failed."""
    FAILED = "failed"
    """A step before it has failed."""
    ALWAYS = "always"
    NEVER = "never"
    """It is left out of this run."""

    def allows(self, *, failed: bool) -> bool:
        """Return whether the step runs; `failed`: whether a step before it has failed."""
        return self is StepCondition.ALWAYS or self is (
            StepCondition.FAILED if failed else StepCondition.SUCCESS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One command of a job, run in the workspace by rules like `sh -eu`."""

    name: str
    run: str
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    timeout_seconds: float | None = None
    secrets: tuple[str, ...] = ()
    """Names of secrets in its environment; their values are not known before it runs."""
    when: StepCondition = StepCondition.SUCCESS
    condition: str = ""
    """Its `if` as written, for people."""
    may_fail: bool = False
    """Whether the job goes on, and can succeed, when it fails: its `continue`."""

    @property
    def is_plain(self) -> bool:
        """Whether it runs after success alone, and ends the job when it fails."""
        return self.when is StepCondition.SUCCESS and not self.may_fail and not self.condition


class JobCondition(StrEnum):
    """When a job that needs others may start: its `if`."""

    SUCCESS = "success"
    """All of them succeeded."""
    ALWAYS = "always"
    """All of them have ended, in any final state; not when the whole run was ended from outside."""


class GroupMode(StrEnum):
    """What happens to the older members of a concurrency group when a new one comes."""

    QUEUE = "queue"
    """They go first."""
    CANCEL = "cancel"
    """They are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """A concurrency group, which one holder has at a time; names are per repository."""

    group: str
    mode: GroupMode = GroupMode.QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a workflow file says about the run as a whole."""

    timeout_seconds: float | None = None
    """From the creation of its jobs to the end of the last, waiting included; None: no limit."""
    concurrency: Concurrency | None = None
    """The run holds it from its first job to its last."""
    supersede: bool | None = None
    """Whether a newer push ends this run.

    None: by the operator's setting, and never on the default branch.
    """


DEFAULT_RUN_SPEC: Final = RunSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSpec:
    """One artifact, as the workflow file describes it."""

    name: str
    """Unique in its job."""
    path: str
    """The pattern of its files (`solstice_common.values.globs`), relative to the workspace."""
    retention_seconds: float | None = None
    """How long it is kept; None: as the operator says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Files that later jobs find again, as the workflow file describes them."""

    name: str
    """Unique in its job."""
    paths: tuple[str, ...]
    """Directories or files in the workspace, or in the job's home directory where they begin with `~/`."""
    key: str
    """Names what is stored, with places for checksums of files (`cache_key`)."""
    fallbacks: tuple[str, ...] = ()
    """Beginnings of other keys that will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSpec:
    """Test reports that a job writes, as the workflow file describes them."""

    format: str
    """`junit`."""
    path: str
    """The pattern of their files, as that of an artifact."""
    required: bool = False
    """Whether a job whose steps succeeded fails when no test was read, or some file could not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job of a workflow, as planned: all that an executor needs besides the request."""

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
    """Further tries after `OWN_FAILURES`."""
    no_output_seconds: float | None = None
    """How long it may write nothing; None: the operator's setting."""
    concurrency: Concurrency | None = None
    """This job holds it while it waits for a slot and runs."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that every step gets."""
    matrix: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Its value per axis of its matrix; empty for a job without a matrix."""
    checkout: CheckoutSpec | None = PLAIN_CHECKOUT
    """None: nothing is checked out."""
    container: ContainerSpec = ANY_CONTAINER
    artifacts: tuple[ArtifactSpec, ...] = ()
    """Kept after its last step."""
    caches: tuple[CacheSpec, ...] = ()
    """Restored before its first step, and saved when it succeeded."""
    needed_artifacts: tuple[NeededArtifact, ...] = ()
    """Placed before its first step, in this order."""
    reports: tuple[ReportSpec, ...] = ()
    """Read after its last step, also when one failed."""
    outputs: tuple[OutputSpec, ...] = ()
    """Read after its last step."""
    needed_outputs: tuple[NeededOutput, ...] = ()
    """Of all jobs that it needs."""
    unmet: str = ""
    """The condition that leaves it out of this run; empty: it is part of it."""
    later: str = ""
    """The rest of its condition, which its needs decide (`workflow/conditions/terms.py`); empty: there is none."""
    notice: str = ""
    """What its log says first; empty: nothing."""

    @property
    def hands_out(self) -> bool:
        """Whether something of its files is read once its steps have succeeded."""
        return bool(self.artifacts or self.outputs)


def named_secrets(spec: JobSpec) -> frozenset[str]:
    """Names of all secrets that the job or one of its steps uses."""
    return frozenset(spec.secrets).union(*(step.secrets for step in spec.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended: `state` is final, or WAITING when it was released.

    An infrastructure `reason` is never derived from what the job printed or returned.
    """

    state: JobState
    reason: Reason
    exit_code: int | None = None
    step: str | None = None
    detail: str = ""
    image: str = ""
    """The image of its container, with the digest that ran; empty when it had none."""
    provisioning_seconds: float | None = None
    """How long it took until its container or VM was ready, or was given up; None: it had none."""
    outputs: tuple[tuple[str, str], ...] = ()
    """Names and texts, of a job that has succeeded."""
    tests: StatusTests | None = None
    """What its test reports say; None: it has none."""
    artifacts: tuple[HandedArtifact, ...] = ()
    egress: tuple[tuple[str, int], ...] = ()
    """How many requests to hosts outside had each result (`EgressResult`), where it had a proxy to them."""


def run_state(states: Collection[JobState]) -> RunState:
    """Return a planned run's state: unfinished while one job is, else the worst end."""
    return _combined_state(frozenset(states))


# Few distinct sets exist, even for many jobs.
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
