"""What a decision is given and what it yields: rows as they were loaded, and rows as they are to be written.

Rows are made by the ten thousand, straight from what the database returns. Their fields have the names of their columns,
in every store.
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
    """Of the newest status told about the run itself."""
    created_at: float
    started_at: float | None
    finished_at: float | None
    plan_attempt: int
    plan_failures: int
    plan_worker: str | None
    plan_since: float | None
    plan_at: float
    timeout_at: float | None
    """When the jobs that have not ended by then are ended."""
    group_key: bytes | None
    """Digest of the concurrency group of the run as a whole."""
    group_held: bool
    """Whether the group is the run's, so that its jobs may go on."""
    concurrency: str | None
    """JSON: name and mode of that group."""
    job_count: int
    """How many jobs it has been given; 0 before it is planned, and where an older version planned it."""
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
    """Of the newest status told about this job."""
    attempt: int = 0
    failures: int = 0
    turn: int = 0
    waiting_since: float | None = None
    """When it last began to wait for a slot."""
    started_at: float | None = None
    finished_at: float | None = None
    retry_at: float | None = None
    exit_code: int | None = None
    step: str | None = None
    worker_id: str | None = None
    lease_until: float | None = None
    cancel_asked: bool = False
    condition: str = JobCondition.SUCCESS.value
    retries: int = 0
    """Its author's budget for failures of its own."""
    retried: int = 0
    """How much of that is spent."""
    ending: str = ""
    """The reason for which its holder was asked to end it; empty: nobody asked, or a person did."""
    ending_detail: str = ""
    ref: str | None = None
    """Of its run's request."""
    group_key: bytes | None = None
    """Digest of the concurrency group of the job itself. It asks for it when it is BLOCKED for CONCURRENCY_GROUP and not
    for its run's sake, and has it from WAITING to its end."""


def begun_with(run: Run, job: Job) -> Run:
    """The run of a job that runs, as it is: the start of a run's only job need not be written into the run's row.

    The row is one status behind then, until that job no longer runs, with which such a run changes its state again.
    """
    if run.job_count != 1 or run.state is not _WAITS:
        return run
    started_at = job.started_at if run.started_at is None else run.started_at
    return replace(run, state=RunState.RUNNING, sequence=run.sequence + 1, started_at=started_at)


class Attempt(NamedTuple):
    """A try at a job that is over; one that is under way stands in its job's row alone."""

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


class RefRun(NamedTuple):
    """A planned run of a branch or change request."""

    run_id: str
    lineage: bytes
    """Digest; the same for all of that branch or change request."""
    supersede: bool | None
    """What its workflow says."""
    rerun: bool
    """Somebody asked for it by hand."""
    commit_sha: str = ""
    before_sha: str | None = None
    asked_at: float = 0.0
    """Of its seniority."""
    lead: int = 0
    """Of the newest it is the greatest; 0: it never was the newest."""


class DeadLetter(Struct, frozen=True, gc=False):
    """A request that goes to the dead letters, by way of the outbox."""

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
    "group_held",
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
    "turn",
    "waiting_since",
    "started_at",
    "finished_at",
    "retry_at",
    "exit_code",
    "step",
    "worker_id",
    "lease_until",
    "cancel_asked",
    "retried",
    "ending",
    "ending_detail",
)
"""The columns of a job that decisions change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What a transaction writes; each row stands in it once, as it is to be."""

    runs: Sequence[Run] = ()
    jobs: Sequence[Job] = ()
    runs_before: Mapping[str, Run] = field(default_factory=lambda: MappingProxyType({}))
    """By their ids, as they were loaded."""
    jobs_before: Mapping[str, Job] = field(default_factory=lambda: MappingProxyType({}))
    new_jobs: Sequence[Job] = ()
    specs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """What new jobs are to do, by job id; written once."""
    attempts: Sequence[Attempt] = ()
    """Those that ended."""
    statuses: Sequence[Status] = ()
    """In the order in which they are to be told."""
    dead_letters: Sequence[DeadLetter] = ()
    """To be told after these."""
    arrivals: Sequence[str] = ()
    """Ids of jobs that wait for the first time, in order: they are to be given their turns."""
    given_up: Sequence[Job] = ()
    """Jobs that waited and never will again, as they were: their turns are free."""
    ref_runs: Sequence[RefRun] = ()
    """Runs that were planned."""
    groups: Sequence[bytes] = ()
    """Concurrency groups that somebody asked for or left: to be settled (succession.py) once this is written."""

    @property
    def rows_alone(self) -> bool:
        """Whether nothing is left to do once the rows are written: no turns, no groups."""
        return not (self.arrivals or self.given_up or self.groups)
