"""What the job store promises. Every method is one transaction; what it returns is durable."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, stored_request
from solstice_common.values import Value
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, JobSpec, Outcome, Reason, RunSpec
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.scheduling.workers import WorkerState
from solstice_orchestrator.store.queries import JobQueries
from solstice_orchestrator.store.schedule_store import ScheduleStore
from solstice_orchestrator.store.views import (
    JobView,
    LogChunk,
    RunView,
)
from solstice_orchestrator.store.worker_registry import WorkerRegistry
from solstice_orchestrator.superseding.push_order import OrderAnswers, OrderQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The request became this run."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The request, or one with its idempotency key, was admitted before, as this run."""

    run_id: str


Admission = Admitted | Duplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What came of a cancel request a change request."""

    run_ids: tuple[str, ...]
    """Runs that ended, or whose jobs are asked to."""
    known: bool
    """Whether there is any run of the change request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningTask:
    """A run whose workflow has to be read; `attempt` fences, as for jobs."""

    run_id: str
    attempt: int
    request: JobRequestV1


class AttemptKey(Value, frozen=True, kw_only=True):
    """One try at a job. `number` grows with every claim, so that a late holder can be told apart."""

    job_id: str
    number: int


class Claim(Value, frozen=True, kw_only=True):
    """A job that is now ours to run, until `lease_until` (seconds since the epoch) unless renewed."""

    key: AttemptKey
    run_id: str
    spec: JobSpec
    body: bytes
    """`jobrequest.v1` as it came."""
    lease_until: float
    waiting_since: float
    """When the job was created."""

    @property
    def request(self) -> JobRequestV1:
        """What was asked for. Read when somebody looks: the claim itself, which holds locks, does not."""
        return stored_request(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What the holder of some attempts must know."""

    lost: frozenset[AttemptKey]
    """Taken from us: kill the processes, write nothing. Not what we ended ourselves."""
    cancelled: frozenset[AttemptKey]
    """Still ours, and somebody asked for their end."""
    state: WorkerState = WorkerState.ACTIVE
    """What the worker may do about new jobs; claims keep to it by themselves."""
    quarantined_until: float | None = None
    """By the store's clock; may be over."""
    registered: bool = True
    """False when the store does not know what the worker is: it registers (again)."""


class OutboxKind(StrEnum):
    STATUS = "status"
    """`body` is canonical `jobstatus.v1`, for the statuses' exchange."""
    DEAD_LETTER = "dead_letter"
    """`body` is the `jobrequest.v1` as it came, for the jobs' dead-letter exchange: its infrastructure budget is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A message that waits for its confirm."""

    number: int
    """Which one it is; those of one request grow in the order in which they are to be told."""
    request_id: str
    body: bytes
    kind: OutboxKind = OutboxKind.STATUS
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a dead letter: why, and the history of its attempts."""


LOG_CHUNKS_PER_PURGE: Final = 1000
"""A step of a purge that would remove more removes so many, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What one step of a purge came to."""

    runs: int
    """How many were removed, with everything that belonged to them."""
    more: bool
    """Whether the next step may find more."""


class JobStore(JobQueries, WorkerRegistry, Protocol):
    """Requests, runs, jobs, attempts, logs and the outbox, shared by any number of orchestrators.

    * Safe to call from any task; calls made together are carried out together.
    * The store's own clock decides about leases.
    * A method that carries an AttemptKey (or a PlanningTask) changes nothing when that attempt is no longer
      current, and says so by its result.
    * Every change of a job's or run's state writes its `jobstatus.v1` to the outbox in the same transaction.
    * Raises only StoreUnavailable; then nothing was changed.
    """

    @property
    def schedule_store(self) -> ScheduleStore:
        """What is built regularly."""
        ...

    # -- requests become runs -----------------------------------------------------------------------------------

    async def admit(
        self, requests: Sequence[JobRequestV1], bodies: Sequence[bytes] | None = None
    ) -> Sequence[Admission]:
        """Store each request as a run in state PLANNING, once per request id and per idempotency key.

        DELAYED when it is not to start before a moment that has not come; it is PLANNING when somebody claims after that.
        `bodies` are the requests as they came; whoever has them at hand saves their being encoded again.
        """
        ...

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        """Take runs whose workflow has to be read, oldest first, under a lease. None for a worker that is not active."""
        ...

    async def take_back_planning(self, worker_id: str, claimed: Collection[str]) -> None:
        """Let others plan the runs that this worker has and does not know of: all but `claimed`.

        The answer to `claim_planning` is lost when the store goes away as it is given. It does not count as a try.
        """
        ...

    async def planned(
        self,
        task: PlanningTask,
        jobs: Sequence[JobSpec],
        run: RunSpec = DEFAULT_RUN_SPEC,
        answers: OrderAnswers | None = None,
    ) -> bool | OrderQuestion:
        """The run has these jobs: those that need nothing WAITING, the others BLOCKED. False when fenced.

        All are in APPROVAL when the request needs that. `run` is what the workflow says of the run as a whole.
        Given `answers`, it may be a Question that has to be among them before it is known whose place the run takes, and
        nothing is changed; without, the order in which the requests were made decides.
        """
        ...

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        """The workflow cannot be used.

        INVALID_WORKFLOW, COMMIT_NOT_FOUND, NOT_TRUSTED (whatever is not one of the following) end the run as
        ERRORED. An infrastructure reason lets it be planned again after a backoff, at most MAX_ATTEMPTS times,
        then ERRORED. RELEASED and MACHINE_FAILED hand it back at once and do not count;
        nor does HOST_AWAY, after a backoff.
        """
        ...

    # -- jobs run -----------------------------------------------------------------------------------------------

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        """Take at most `limit` waiting jobs that fit the `free` slots per label, in dispatch order.

        None for a worker that is not active.
        """
        ...

    async def renew(self, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
        """Prolong the leases of what is held, and the worker's own heartbeat (planning lives by that one alone)."""
        ...

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
        """Keep these chunks; safe to repeat. False when fenced."""
        ...

    def finish(self, key: AttemptKey, outcome: Outcome) -> Awaitable[bool]:
        """Record how the attempt ended and what follows from it; safe to repeat. False when fenced.

        It is under way once this is called: ends that are told before the first is awaited are recorded together.

        Final outcome: the job ends, jobs that need it become WAITING or SKIPPED, the run ends with its last job.
        One of OWN_FAILURES, and the job's own `retries` not spent: WAITING again at once, RETRYING.
        Infrastructure reason: BACKOFF with full jitter, or ERRORED when the budget is spent; MACHINE_FAILED spends none.
        RELEASED: WAITING again at once, the attempt does not count against either budget.
        None of the three once its end was asked for: then it ends for the reason for which it was.
        """
        ...

    async def rescue(self) -> Sequence[AttemptKey]:
        """End attempts whose lease has run out, and return them; end what is left of runs that are out of time.

        LEASE_EXPIRED, or AGENT_LOST when their worker's heartbeat stopped too. Planning leases that ran out are
        taken back, and jobs whose backoff is over wait again.
        """
        ...

    # -- people steer -------------------------------------------------------------------------------------------

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        """End a job: at once when it is not running, by its holder otherwise. None when there is none.

        The detail says who asked, for people.
        """
        ...

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        """End every job of a run that has not ended, or its planning, likewise. None when there is none."""
        ...

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        """End every run of a change request that was asked for before the cancel request, whether it is here or comes later.

        Safe to repeat. What was asked for at that moment or later is left alone, and comes to no harm.
        """
        ...

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        """Put a job into another class, where it is the newest; nothing changes once it has ended. None when there is none."""
        ...

    async def approve_run(self, run_id: str) -> RunView | None:
        """Let the jobs of a run that wait for APPROVAL go on; changes nothing when none does. None when there is no such run."""
        ...

    async def rerun(self, run_id: str) -> RunView | None:
        """A new run of the same request, under a new request id, with `rerun_of`. None when there is none."""
        ...

    async def rerun_failed(self, run_id: str) -> RunView | RerunRefusal | None:
        """As `rerun`, with those jobs alone that did not succeed, and those that need one of them (`reruns.py`)."""
        ...

    async def rerun_job(self, job_id: str) -> RunView | RerunRefusal | None:
        """As `rerun`, with this job, those that need it, and what they need that did not succeed."""
        ...

    # -- the outcome is told ------------------------------------------------------------------------------------

    async def outbox(self, limit: int) -> Sequence[OutboxMessage]:
        """Messages that wait to be published, oldest first; perhaps fewer than there are within the limit, but not none.

        Nothing while another opened store publishes them, so that their order is kept: whoever was given some is
        the publisher until it has confirmed all there are, or has not asked again for a third of a lease.
        """
        ...

    async def published(self, numbers: Sequence[int]) -> None:
        """The messages with these numbers have been confirmed."""
        ...

    # -- what is old goes ---------------------------------------------------------------------------------------

    async def purgeable(self, older_than_seconds: float) -> int:
        """How many runs ended more than so long ago."""
        ...

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        """Remove some of these runs, at most `limit`, the oldest first: with their requests, jobs, attempts and logs.

        Short, so that nobody waits long: call it again while there is more. What still waits in the outbox is told
        all the same. A request whose run is gone is forgotten: should it ever come again, it is a new run.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something may have changed, here or in another process.

        It may come too often, never not at all; whoever waits also looks again now and then.
        """
        ...
