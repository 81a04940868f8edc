"""The job store's promises: every method is one transaction, and its result is durable.

A power cut of the store's machine may undo claims to plan and confirms: the run is planned again, and the message
published again.
"""

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, stored_request
from solstice_common.values.value import Value
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, JobSpec, Outcome, Reason, RunSpec
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.scheduling.workers import WorkerState
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord, ArtifactRecords
from solstice_orchestrator.store.job_queries import JobQueries
from solstice_orchestrator.store.records.report_records import ReportRecords
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.store.schedule_store import ScheduleStore
from solstice_orchestrator.store.traced_runs import RunTraces
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
    """The request, or one with its idempotency key, was admitted earlier as this run."""

    run_id: str


Admission = Admitted | Duplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The result of cancelling a change request."""

    run_ids: tuple[str, ...]
    """Runs that ended, or whose jobs were asked to end."""
    known: bool
    """Whether the change request has any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningTask:
    """A run whose workflow must be read; `attempt` fences, as for jobs."""

    run_id: str
    attempt: int
    request: JobRequestV1
    is_rerun: bool = False
    """Whether a person asked for this run again."""


class AttemptKey(Value, frozen=True, kw_only=True):
    """One attempt at a job.

    `number` grows with every claim, so the store can recognise a late holder.
    """

    job_id: str
    number: int


class LastChunks(Value, frozen=True, kw_only=True):
    """The end of an attempt's log, or of the log of one of its services."""

    chunks: Sequence[LogChunk]
    service: str = ""


class Claim(Value, frozen=True, kw_only=True):
    """A job claimed until `lease_until` (seconds since the epoch) unless renewed."""

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
        """The job's request.

        It is decoded on first use: a claim holds locks and must not decode.
        """
        return stored_request(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What the holder of some attempts must know after a renewal."""

    lost: frozenset[AttemptKey]
    """Attempts that the store took away: kill the processes, write nothing. Without those that the holder ended
    itself.
    """
    cancelled: frozenset[AttemptKey]
    """Attempts that the holder still has and whose end was asked for."""
    state: WorkerState = WorkerState.ACTIVE
    """What the worker may do about new jobs; claims obey it too."""
    quarantined_until: float | None = None
    """By the store's clock; may be in the past."""
    registered: bool = True
    """False when the store does not know the worker's properties: the worker registers (again)."""


class OutboxKind(StrEnum):
    STATUS = "status"
    """`body` is canonical `jobstatus.v1`, for the statuses' exchange."""
    DEAD_LETTER = "dead_letter"
    """`body` is the `jobrequest.v1` as it came, for the jobs' dead-letter exchange: the infrastructure budget is
    spent.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A message that waits for its confirm."""

    number: int
    """Identifies the message; the numbers of one request grow in publishing order."""
    request_id: str
    body: bytes
    kind: OutboxKind = OutboxKind.STATUS
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a dead letter: its reason and the history of its attempts."""


LOG_CHUNKS_PER_PURGE: Final = 1000
"""How many log chunks one purge step removes at most; a full step removes nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """The result of one purge step."""

    runs: int
    """How many runs were removed, with everything that belonged to them."""
    more: bool
    """Whether the next step may find more."""


class JobStore(JobQueries, WorkerRegistry, RunTraces, ArtifactRecords, ReportRecords, Protocol):
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
        """The schedules of this store."""
        ...

    # -- requests become runs -----------------------------------------------------------------------------------

    async def admit(
        self,
        requests: Sequence[JobRequestV1],
        bodies: Sequence[bytes] | None = None,
        signatures: Sequence[str] | None = None,
    ) -> Sequence[Admission]:
        """Store each request as a PLANNING run, once per request id and idempotency key.

        A request that must not start before a later moment becomes DELAYED; a claim after that moment makes it
        PLANNING. `bodies` are the requests as they came; a caller that has them saves encoding them again.
        `signatures` are theirs, where one was asked for: a dead letter of the request carries it again.
        """
        ...

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        """Take runs whose workflow must be read, oldest first, under a lease.

        A worker that is not active gets none.
        """
        ...

    async def take_back_planning(self, worker_id: str, claimed: Collection[str]) -> None:
        """Release the planning of this worker's runs that are not in `claimed`.

        The answer to `claim_planning` is lost when the store becomes unavailable while it answers. The lost claim does
        not count as an attempt.
        """
        ...

    async def planned(
        self,
        task: PlanningTask,
        jobs: Sequence[JobSpec],
        run: RunSpec = DEFAULT_RUN_SPEC,
        answers: OrderAnswers | None = None,
    ) -> bool | OrderQuestion:
        """Give the run these jobs: WAITING without needs, BLOCKED with them. False when fenced.

        All are in APPROVAL when the request needs that. `run` is what the workflow says of the run as a whole. Given
        `answers`, the result may be an OrderQuestion that needs an answer before the store can decide which run supersedes
        which; then nothing is changed. Without `answers`, the order in which the requests were made decides.
        """
        ...

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        """Record that the run could not be planned.

        INVALID_WORKFLOW, COMMIT_NOT_FOUND, NOT_TRUSTED (every reason that is not listed below) end the run as ERRORED,
        EVENT_NOT_BUILT as SKIPPED.
        An infrastructure reason lets it be planned again after a backoff, at most MAX_ATTEMPTS times, then ERRORED.
        RELEASED and MACHINE_FAILED hand it back at once and do not count; nor does HOST_AWAY, after a backoff.
        """
        ...

    # -- jobs run -----------------------------------------------------------------------------------------------

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        """Take at most `limit` waiting jobs that fit the `free` slots per label, in order.

        The order is the dispatch order. A worker that is not active gets none.
        """
        ...

    async def renew(self, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
        """Renew the leases of these attempts, and the worker's own heartbeat.

        Planning leases depend on the heartbeat alone.
        """
        ...

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk], service: str = "") -> bool:
        """Store these log chunks of the job or a service; safe to repeat.

        False when fenced.
        """
        ...

    async def record_image(self, key: AttemptKey, image: str) -> bool:
        """Record the image, with its digest, in which the attempt will run. False when fenced."""
        ...

    async def record_artifact(
        self, key: AttemptKey, artifact: ArtifactRecord, most_bytes: int
    ) -> ArtifactAnswer:
        """Record an artifact of a running attempt, replacing an earlier attempt's.

        `most_bytes` is the limit of all artifacts, equal archives counted once; 0: none. Safe to repeat.
        """
        ...

    async def provisioning(self, key: AttemptKey, seconds: float, *, done: bool) -> bool:
        """Record for how long an attempt has prepared its container or VM.

        `done`: it is ready. False when fenced.
        """
        ...

    def finish(self, key: AttemptKey, outcome: Outcome, logs: Sequence[LastChunks] = ()) -> Awaitable[bool]:
        """Record how the attempt ended and what follows, with the ends of its logs.

        Safe to repeat. False when fenced: then nothing of `logs` is stored either.

        The write starts when this is called: ends from calls made before the first is awaited are recorded together.

        Final outcome: the job ends, jobs that need it become WAITING or SKIPPED, the run ends with its last job. One of
        OWN_FAILURES, and the job's own `retries` not spent: WAITING again at once, RETRYING. Infrastructure reason:
        BACKOFF with full jitter, or ERRORED when the budget is spent; MACHINE_FAILED spends none. RELEASED: WAITING
        again at once, the attempt does not count against either budget. When the job's end was asked for, none of these
        three applies: the job ends for the reason that was given.
        """
        ...

    async def rescue(self) -> Sequence[AttemptKey]:
        """End and return attempts whose lease ran out; end runs that exceeded their time limit.

        The reason is LEASE_EXPIRED, or AGENT_LOST when their worker's heartbeat stopped too. Planning leases that ran
        out are taken back, and jobs whose backoff is over wait again.
        """
        ...

    # -- people steer -------------------------------------------------------------------------------------------

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        """End a job: at once when it is not running, else through its holder.

        The detail names the requester, for readers. None when the job does not exist.
        """
        ...

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        """End every job of an unfinished run, or its planning, like `cancel_job`.

        None when the run does not exist.
        """
        ...

    async def cancel_changes(self, cancels: Sequence[JobCancelV1]) -> Sequence[Cancelled]:
        """End every run of a change request that was requested before the cancel request.

        This includes runs that arrive later. Safe to repeat. Runs requested at that moment or later are left alone.
        """
        ...

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        """Move a job to another priority class, as its newest job.

        Nothing changes when the job has ended. None when the job does not exist.
        """
        ...

    async def approve_run(self, run_id: str) -> RunView | None:
        """Release the jobs of a run that wait for APPROVAL.

        Nothing changes when none waits. None when the run does not exist.
        """
        ...

    async def rerun(self, run_id: str) -> RunView | None:
        """Create a new run of the same request, with a new request id and `rerun_of`.

        None when the run does not exist.
        """
        ...

    async def rerun_failed(self, run_id: str) -> RunView | RerunRefusal | None:
        """Rerun the jobs of a run that did not succeed, and their dependents (`reruns.py`)."""
        ...

    async def rerun_job(self, job_id: str) -> RunView | RerunRefusal | None:
        """Rerun this job, its dependents, and those of its needs that did not succeed."""
        ...

    # -- statuses and dead letters are published ------------------------------------------------------------------

    async def outbox(self, limit: int) -> Sequence[OutboxMessage]:
        """Return messages that wait to be published, oldest first.

        There may be fewer than the limit while more exist, but never none while some exist. None are returned while
        another opened store publishes, so that their order is kept. A store that received some is the publisher until
        it has confirmed all there are, or has not asked again for a third of a lease.
        """
        ...

    async def published(self, numbers: Sequence[int]) -> None:
        """Record that the broker confirmed the messages with these numbers."""
        ...

    # -- old runs are removed -------------------------------------------------------------------------------------

    async def purgeable(self, older_than_seconds: float) -> int:
        """Count the runs that ended more than this long ago."""
        ...

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        """Remove at most `limit` of these runs, oldest first, with everything that belongs to them.

        That is their requests, jobs, attempts and logs. One call is short, so that other callers do not wait long: call
        it again while there is more. Messages in the outbox are still published. The store forgets a removed run's
        request: if it comes again, it becomes a new run.
        """
        ...

    def changes(self, topics: StoreTopic = StoreTopic.ALL) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something of these topics may have changed.

        That is here or in another process. It may be set too often, and a single change may be missed; a caller that waits for it also polls from
        time to time.
        """
        ...
