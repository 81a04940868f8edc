"""Claim waiting jobs for free slots, start them, renew their leases, and drain them."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_common.runtime.pausing import pause
from solstice_common.runtime.periodic import on_notification
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.capacity import Capacity, FreeSlots, free
from solstice_orchestrator.scheduling.workers import WorkerPressure, WorkerRegistration, WorkerState
from solstice_orchestrator.store.protocol import AttemptKey, Claim, JobStore
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.worker.pressure import Governor

log = structlog.get_logger(__name__)

CLAIM_LIMIT: Final = 32
POLL_SECONDS: Final = 2.0
"""How late the end of a backoff, or a lost notification, is noticed."""
LEAST_PAUSE_SECONDS: Final = 0.01
CONDITION_SECONDS: Final = 10.0
"""How often this worker reports the resource that it lacks, while it starts nothing."""
CANCEL_CHECK_SECONDS: Final = 1.0
"""The shortest time between two checks for cancelled jobs after notifications from the store."""

_BROKEN: Final = Outcome(
    state=JobState.ERRORED,
    reason=Reason.EXECUTOR_FAILED,
    detail="an internal error of the orchestrator; its log has the traceback",
)


class Execute(Protocol):
    """Runs a claimed attempt until its end is recorded.

    It ends the attempt with grace once `stop` is set, and at once when cancelled.
    """

    def __call__(self, claim: Claim, *, stop: asyncio.Event) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningAttempt:
    label: str
    since: float
    """When the job was claimed, by the monotonic clock."""
    stop: asyncio.Event
    task: asyncio.Task[None]


class Dispatch:
    """The attempts that one worker runs, each as a task in the group `jobs`.

    The caller runs the loops `claim_jobs` and `keep_leases`. The first returns some time after `stop_claiming`; the
    second runs until cancelled, and must run for as long as jobs do.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        execute: Execute,
        registration: WorkerRegistration,
        jobs: asyncio.TaskGroup,
        metrics: Metrics,
        rng: random.Random,
        lease_seconds: float,
        renew_seconds: float,
        governor: Governor | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`governor` says how many jobs this machine can take; without it, the slots alone decide."""
        self._store = store
        self._execute = execute
        self._registration = registration
        self._jobs = jobs
        self._metrics = metrics
        self._rng = rng
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._governor = governor
        self._clock = clock
        self._monotonic = monotonic
        self._reported = WorkerPressure()
        """The pressure of this worker that was last reported to the store."""
        self._reported_at = -math.inf
        self._running: dict[AttemptKey, _RunningAttempt] = {}
        self._wake = asyncio.Event()
        self._lacks_slots = True
        """Whether the last claim may have left jobs waiting for a slot; also while one is made."""
        self._claiming = True
        self._state = WorkerState.ACTIVE
        self.drain_ordered = asyncio.Event()
        """Set once an operator has ordered this worker to finish its jobs and end."""

    @property
    def running(self) -> int:
        """The number of attempts that run here."""
        return len(self._running)

    def stop_claiming(self) -> None:
        """Claim no more jobs."""
        self._claiming = False
        self._wake.set()

    def wake(self) -> None:
        """Check soon whether more jobs can be claimed, because something has changed."""
        self._wake.set()

    async def claim_jobs(self) -> None:
        """Fill free slots until `stop_claiming`."""
        async with self._store.changes(StoreTopic.CLAIMS) as self._wake:
            await on_notification(
                self._claim,
                notified=self._wake,
                retry_seconds=POLL_SECONDS,
                rng=self._rng,
                log=log,
                failed=LogEvent.CLAIMS_PAUSED,
                ended=lambda: not self._claiming,
            )

    async def keep_leases(self) -> None:
        """Renew the leases and the heartbeat until cancelled.

        Cancellations and lost leases in the store's answer are passed to the running attempts.
        """
        renewed_at = self._monotonic()
        async with self._store.changes() as changed:
            while True:
                changed.clear()
                begun = self._monotonic()
                left = renewed_at + self._lease_seconds - begun
                if await self._renew(left if left > 0 else self._lease_seconds):
                    renewed_at, rest = begun, self._renew_seconds
                    if self._state is WorkerState.QUARANTINED:
                        # The end of a quarantine sends no notification.
                        rest = min(rest, POLL_SECONDS)
                else:
                    self._give_up(renewed_at)
                    rest = min(1.0, self._renew_seconds)
                shortest = min(CANCEL_CHECK_SECONDS, rest)
                await asyncio.sleep(shortest)
                await pause((rest - shortest) * self._rng.uniform(0.8, 1.0), unless=changed)

    async def drain(self, grace_seconds: float, hurry: asyncio.Event) -> int:
        """Wait for running attempts, then hand the rest back and return how many those are.

        The wait lasts `grace_seconds`, or until `hurry`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.finish_jobs(hurry)
        unfinished = [attempt.task for attempt in self._running.values()]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        return len(unfinished)

    async def finish_jobs(self, hurry: asyncio.Event) -> None:
        """Wait until no attempt runs here, or until `hurry`."""
        async with asyncio.TaskGroup() as waiting:
            hurried = waiting.create_task(hurry.wait(), name="drain-hurry")
            while self._running and not hurried.done():
                tasks = {attempt.task for attempt in self._running.values()}
                await asyncio.wait({hurried, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()

    async def _claim(self) -> float:
        """Claim and start waiting jobs; return the seconds until the next poll."""
        begun, self._lacks_slots = self._monotonic(), True
        total, limit = await self._governed()
        left = self._free(total)
        limit = min(left.total, limit)
        claims: Sequence[Claim] = ()
        if limit > 0:
            claims = await self._store.claim(self._registration.worker_id, left.slots, limit)
            if self._governor is not None:
                self._governor.jobs_wait = len(claims) >= limit
        for claim in claims:
            await self._start(claim)
        self._lacks_slots = len(claims) >= limit or 0 in self._free(total).slots.values()
        if len(claims) == CLAIM_LIMIT:
            return 0.0
        longest = POLL_SECONDS * self._rng.uniform(0.8, 1.2)
        # The store counts from the last claim, and sends no notification when a start rate allows one more job.
        allowed = await self._store.rate_pause(self._monotonic() - begun)
        return longest if allowed is None else min(longest, max(LEAST_PAUSE_SECONDS, allowed))

    def _free(self, total: Capacity) -> FreeSlots:
        return free(total, [attempt.label for attempt in self._running.values()])

    async def _governed(self) -> tuple[Capacity, int]:
        """Return the capacity under the present pressure and how many more may start now.

        A changed pressure is reported to the store.
        """
        total = self._registration.capacity
        if self._governor is None:
            return total, CLAIM_LIMIT
        pressure = self._governor.current()
        await self._report_pressure(pressure)
        if pressure.shrunk_to is not None:
            total = replace(total, limit=pressure.shrunk_to)
        startable = self._governor.startable
        return total, CLAIM_LIMIT if startable is None else min(CLAIM_LIMIT, startable)

    async def _report_pressure(self, pressure: WorkerPressure) -> None:
        # The numbers in the sentence change at every check: readers see them a few seconds old, with their
        # age.
        changed = (pressure.shrunk_to, pressure.refuses) != (self._reported.shrunk_to, self._reported.refuses)
        # By the moment of this check: while the store is slow, its readers see an older one.
        now = self._monotonic()
        is_old = now - self._reported_at >= CONDITION_SECONDS
        if not changed and not (is_old and pressure.refuses is not None):
            return
        try:
            await self._store.report(self._registration.worker_id, pressure)
        except StoreUnavailable as error:
            log.warning(LogEvent.PRESSURE_NOT_STORED, detail=str(error))
        else:
            self._reported, self._reported_at = pressure, now

    async def _start(self, claim: Claim) -> None:
        if not self._claiming:
            # Claimed just as this worker was asked to end: it has not run, so it goes back unchanged.
            with contextlib.suppress(StoreUnavailable):
                await self._store.finish(
                    claim.key, Outcome(state=JobState.WAITING, reason=Reason.RELEASED, detail="")
                )
            log.info(LogEvent.JOB_RELEASED, job_id=claim.key.job_id, attempt=claim.key.number)
            return
        waited = self._clock() - claim.waiting_since
        if claim.key.number == 1:
            self._metrics.job_started(claim.spec.runs_on, waited, claim.spec.priority)
        else:
            self._metrics.job_retried(claim.spec.runs_on, claim.spec.priority)
        log.info(
            LogEvent.JOB_CLAIMED,
            job_id=claim.key.job_id,
            attempt=claim.key.number,
            run_id=claim.run_id,
            request_id=claim.request.request_id,
            job=claim.spec.name,
            runs_on=claim.spec.runs_on,
            waited_seconds=round(waited, 3),
        )
        if self._governor is not None:
            self._governor.started()
        stop = asyncio.Event()
        task = self._jobs.create_task(
            self._run_attempt(claim, stop), name=f"job {claim.spec.name} #{claim.key.number}"
        )
        self._running[claim.key] = _RunningAttempt(
            label=claim.spec.runs_on, since=self._monotonic(), stop=stop, task=task
        )
        # Not in the task itself: a task that is cancelled before it starts never runs a line.
        task.add_done_callback(lambda _: self._forget(claim.key))

    async def _run_attempt(self, claim: Claim, stop: asyncio.Event) -> None:
        try:
            await self._execute(claim, stop=stop)
        except Exception:
            # One job must not end the others, not even one whose end cannot be recorded: its lease runs out.
            log.exception(LogEvent.EXECUTION_CRASHED, job_id=claim.key.job_id, attempt=claim.key.number)
            with contextlib.suppress(Exception):
                await self._store.finish(claim.key, _BROKEN)

    def _forget(self, key: AttemptKey) -> None:
        del self._running[key]
        if self._lacks_slots:
            self._wake.set()

    async def _renew(self, within_seconds: float) -> bool:
        leases = tuple(self._running)
        try:
            async with asyncio.timeout(within_seconds):
                renewal = await self._store.renew(self._registration.worker_id, leases)
                if not renewal.registered:
                    state = await self._store.register(self._registration)
                    self._reported = WorkerPressure()
                    log.warning(
                        LogEvent.WORKER_REGISTERED_AGAIN, worker_id=self._registration.worker_id, state=state
                    )
        except (StoreUnavailable, TimeoutError) as error:
            log.warning(LogEvent.LEASES_NOT_RENEWED, detail=str(error) or "no answer", leases=len(leases))
            return False
        except Exception as error:
            log.exception(LogEvent.LEASES_NOT_RENEWED, detail=str(error), leases=len(leases))
            return False
        # Attempts that ended during the call need no answer.
        for key in renewal.lost & self._running.keys():
            self._lose(key, "another holder, or none, has it now")
        self._metrics.leases_renewed(len(leases) - len(renewal.lost))
        for key in renewal.cancelled:
            execution = self._running.get(key)
            if execution is not None and not execution.stop.is_set():
                log.info(LogEvent.CANCEL_RECEIVED, job_id=key.job_id, attempt=key.number)
                execution.stop.set()
        self._apply_state(renewal.state, renewal.quarantined_until)
        return True

    def _apply_state(self, state: WorkerState, quarantined_until: float | None) -> None:
        """Log a changed worker state; the store itself enforces it."""
        if state is self._state:
            return
        log.warning(
            LogEvent.WORKER_STATE_CHANGED,
            worker_id=self._registration.worker_id,
            state=state,
            was=self._state,
            quarantined_until=quarantined_until,
        )
        self._state = state
        match state:
            case WorkerState.QUARANTINED:
                self._metrics.quarantined()
            case WorkerState.DRAINING:
                self.drain_ordered.set()
            case WorkerState.ACTIVE:
                self._wake.set()
            case WorkerState.PAUSED:
                pass

    def _give_up(self, renewed_at: float) -> None:
        """Cancel the attempts whose leases may have run out.

        Another worker may hold them by now, and running a job twice at once is worse than running it again.
        """
        old = self._monotonic() - self._lease_seconds
        for key, attempt in tuple(self._running.items()):
            if max(renewed_at, attempt.since) <= old:
                self._lose(key, "the store was away for longer than a lease")

    def _lose(self, key: AttemptKey, why: str) -> None:
        task = self._running[key].task
        if not task.cancelling():
            self._metrics.leases_lost()
            log.warning(LogEvent.LEASE_LOST, job_id=key.job_id, attempt=key.number, detail=why)
            task.cancel()
