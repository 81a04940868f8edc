"""The rows that a decision reads and the rows that it writes. Pure values.

Rows are made by the ten thousand, straight from what the database returns. Their fields have the names of their
columns, in every store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import JobCondition, Reason
from solstice_orchestrator.domain.statuses import Status

_WAITS: Final = RunState.WAITING
"""Named here as in transitions.py."""


class Run(Struct, frozen=True, gc=False):
    """A run, with its request."""

    state: RunState
    run_id: str
    repository: str
    detail: str
    sequence: int
    """Of the newest status about the run itself."""
    created_at: float
    started_at: float | None
    finished_at: float | None
    plan_attempt: int
    plan_failures: int
    plan_worker: str | None
    plan_since: float | None
    plan_at: float
    timeout_at: float | None
    """When its unfinished jobs are ended."""
    group_key: bytes | None
    """Digest of the concurrency group of the run as a whole."""
    group_acquired: bool
    """Whether the run holds the group, so that its jobs may start."""
    concurrency: str | None
    """JSON: name and mode of that concurrency group."""
    job_count: int
    """How many jobs planning gave it; 0 before that, and for runs that an older version planned."""
    request: bytes
    """`jobrequest.v1` as it came."""


class Job(Struct, frozen=True, gc=False):
    """A job of a run."""

    state: JobState
    reason: Reason
    job_id: str
    run_id: str
    position: int
    name: str
    runs_on: str
    priority: int
    repository: str
    needs: str
    """JSON list of names."""
    created_at: float
    owner: str = ""
    """Of its repository."""
    detail: str = ""
    sequence: int = 0
    """Of the newest status about this job."""
    attempt: int = 0
    failures: int = 0
    start_tag: int = 0
    waiting_since: float | None = None
    """When it last began to wait for a slot."""
    started_at: float | None = None
    finished_at: float | None = None
    retry_at: float | None = None
    exit_code: int | None = None
    step: str | None = None
    image: str = ""
    """Of its last attempt."""
    provisioning_seconds: float | None = None
    """The same."""
    worker_id: str | None = None
    lease_until: float | None = None
    cancel_requested: bool = False
    condition: str = JobCondition.SUCCESS.value
    retries: int = 0
    """How many failures of the job itself its author allows to retry."""
    retried: int = 0
    """How much of that budget is spent."""
    ending: str = ""
    """The reason for which its holder was asked to end it; empty when there is none or a person asked."""
    ending_detail: str = ""
    ref: str | None = None
    """Of its run's request."""
    group_key: bytes | None = None
    """Digest of the job's own concurrency group.

    The job asks for the group when it is BLOCKED for CONCURRENCY_GROUP and not for its run's group, and holds it from
    WAITING to its end.
    """
    later: str = ""
    """The rest of its condition, which its needs decide."""


def begun_with(run: Run, job: Job) -> Run:
    """Return the run as it is now, given its running job.

    The start of a run's only job need not be written into the run's row. Then the row is one status behind until that
    job stops running, which changes the run's state again.
    """
    if run.job_count != 1 or run.state is not _WAITS:
        return run
    started_at = job.started_at if run.started_at is None else run.started_at
    return replace(run, state=RunState.RUNNING, sequence=run.sequence + 1, started_at=started_at)


class Attempt(NamedTuple):
    """An ended attempt at a job; a running one exists only in its job's row."""

    job_id: str
    number: int
    worker_id: str
    state: JobState
    reason: Reason
    started_at: float
    finished_at: float
    exit_code: int | None
    step: str | None
    detail: str
    image: str = ""
    provisioning_seconds: float | None = None


class ChunkRow(NamedTuple):
    """A chunk of an attempt's log."""

    job_id: str
    attempt: int
    sequence: int
    at: float
    data: bytes
    kind: str | None
    """None: output."""
    service: str = ""
    """The service of the job that wrote it; empty for the job's own log."""


class OutputsRow(NamedTuple):
    """The outputs of a job that has succeeded."""

    job_id: str
    attempt: int
    content: str
    """JSON."""


class RefRun(NamedTuple):
    """A planned run of a branch or change request."""

    run_id: str
    ref_key: bytes
    """Digest, the same for every run of that branch or change request."""
    supersede: bool | None
    """What its workflow says about superseding."""
    rerun: bool
    """A person asked for this run again."""
    commit_sha: str
    before_sha: str | None
    requested_at: float
    """The request time within its seniority."""
    lead: int = 0
    """Greatest for the newest run; 0 when it never was the newest."""


class RequestDeadLetter(Struct, frozen=True, gc=False):
    """A request that becomes a dead letter through the outbox."""

    request_id: str
    body: bytes
    headers: str
    """JSON."""


RUN_CHANGES: Final = (
    "state",
    "detail",
    "sequence",
    "started_at",
    "finished_at",
    "plan_attempt",
    "plan_failures",
    "plan_worker",
    "plan_since",
    "plan_at",
    "timeout_at",
    "group_key",
    "group_acquired",
    "concurrency",
    "job_count",
)
"""The columns of a run that decisions change."""

JOB_CHANGES: Final = (
    "state",
    "reason",
    "detail",
    "priority",
    "sequence",
    "attempt",
    "failures",
    "start_tag",
    "waiting_since",
    "started_at",
    "finished_at",
    "retry_at",
    "exit_code",
    "step",
    "image",
    "provisioning_seconds",
    "worker_id",
    "lease_until",
    "cancel_requested",
    "retried",
    "ending",
    "ending_detail",
)
"""The columns of a job that decisions change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What a transaction writes; each row appears once, with its new values."""

    runs: Sequence[Run] = ()
    jobs: Sequence[Job] = ()
    runs_before: Mapping[str, Run] = field(default_factory=lambda: MappingProxyType({}))
    """By id, as they were loaded."""
    jobs_before: Mapping[str, Job] = field(default_factory=lambda: MappingProxyType({}))
    new_jobs: Sequence[Job] = ()
    specs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """The specs of new jobs, by job id; written once."""
    attempts: Sequence[Attempt] = ()
    """Attempts that ended."""
    log_rows: Sequence[ChunkRow] = ()
    """Chunks of their logs; those that are stored already stay as they are."""
    outputs: Sequence[OutputsRow] = ()
    statuses: Sequence[Status] = ()
    """In publishing order."""
    dead_letters: Sequence[RequestDeadLetter] = ()
    """Published after the statuses."""
    arrivals: Sequence[str] = ()
    """Ids of jobs that start to wait for a slot, in order: each needs a start tag."""
    given_up: Sequence[Job] = ()
    """Jobs that no longer wait for their start tag, as they were: their start tags are free."""
    ref_runs: Sequence[RefRun] = ()
    """Runs that were planned for a branch or change request."""
    groups: Sequence[bytes] = ()
    """Concurrency groups that were asked for or left; `decisions/supersede.py` settles them after this write."""

    @property
    def rows_alone(self) -> bool:
        """Whether writing the rows is all there is to do: no start tags, no groups."""
        return not (self.arrivals or self.given_up or self.groups)
