"""Decide how many jobs this worker may start, from its sensors and recent outcomes."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.adaptive_concurrency import (
    ConcurrencyWindow,
    after_trouble,
    is_trouble,
    slots,
    while_trouble_lasts,
)
from solstice_orchestrator.scheduling.governor import (
    UNFIT_RESOURCES,
    MachineLimits,
    Resource,
    SensorReading,
    StartRefusal,
    out_of_patience,
    pause_seconds,
    refusal,
    startable,
)
from solstice_orchestrator.scheduling.quarantine import proves_able
from solstice_orchestrator.scheduling.start_window import (
    StartWindow,
    TimedCheckout,
    after_checkout,
    full_window,
)
from solstice_orchestrator.scheduling.workers import WorkerPressure

log = structlog.get_logger(__name__)

READING_SECONDS: Final = 1.0
"""How long a reading of the sensors is used."""
FULL_SECONDS: Final = 5.0
"""How long a window of starts is full before people are told."""


class StartingJobs:
    """Counts and times the attempts in setup; an executor calls it for each checkout."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.on_begun: Callable[[], None] = _do_nothing
        """Called when a setup has ended, with or without success."""
        self.on_timed: Callable[[float, int, bool], None] = _note_nothing
        """Called before that, with its seconds, how many were in setup with it, and whether it succeeded."""
        self._clock = clock

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Count one until the block is left."""
        begun, succeeded = self._clock(), False
        self.count += 1
        try:
            yield
            succeeded = True
        finally:
            self.on_timed(self._clock() - begun, self.count, succeeded)
            self.count -= 1
            self.on_begun()


class Governor:
    """Decides how many jobs may start; one per orchestrator, not thread-safe."""

    def __init__(
        self,
        *,
        limit: int,
        limits: MachineLimits,
        adaptive: bool,
        read: Callable[[], SensorReading],
        starting: StartingJobs,
        metrics: Metrics,
        patience_seconds: float = 0.0,
        start_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`patience_seconds`: under load, one job may start after so long without one; 0: none may.

        `start_seconds`: how long a checkout may take before fewer are made at once; 0: any time.
        """
        self._limit = limit
        self._limits = limits
        self._adaptive = adaptive
        self._read = read
        self._starting = starting
        self._metrics = metrics
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._window: ConcurrencyWindow | None = None
        self._reading = SensorReading()
        self._read_at: float | None = None
        self._refused: StartRefusal | None = None
        self._nothing_since = 0.0
        """Since when no job has started because of a refusal."""
        self._overloaded_at: float | None = None
        """When the last reading was an overload; None: it was not."""
        self._slots_logged = limit
        self._jitter = jitter
        self._start_seconds = start_seconds
        self._start_window = StartWindow()
        self.jobs_wait = False
        """Whether the last claim left jobs waiting; set by what claims."""
        self._full_since: float | None = None
        """Since when the window of starts has let no job start."""
        if start_seconds:
            starting.on_timed = self._checked_out
        self._machine_failures = 0
        """Consecutive failures; those during one pause count as one."""
        self._machine_until = 0.0
        self._machine_detail = ""

    def started(self) -> None:
        """Record that a job has started here."""
        self._nothing_since = self._clock()

    def machine_failed(self, detail: str) -> None:
        """Record that the machine lacked a resource: this worker pauses, and others go first."""
        now = self._clock()
        if now < self._machine_until:
            return
        self._machine_failures += 1
        self._machine_until = now + pause_seconds(self._machine_failures, self._jitter())
        self._machine_detail = detail[:300]

    def machine_worked(self) -> None:
        """Record that the machine had all resources for a piece of work."""
        if self._clock() >= self._machine_until:
            self._machine_failures = 0

    def plannable(self, most: int) -> int:
        """Return how many of `most` runs may be planned; one as trial after failures."""
        if self.current().refuses in UNFIT_RESOURCES:
            return 0
        return min(most, 1) if self._machine_failures else most

    @property
    def unfit(self) -> str | None:
        """Why this machine takes no work, by the last reading; None when it does."""
        refused = self._refused
        return None if refused is None or refused.resource not in UNFIT_RESOURCES else refused.detail

    def ended(self, outcome: Outcome) -> None:
        """Record the outcome of an attempt of this worker."""
        if outcome.reason is Reason.MACHINE_FAILED:
            self.machine_failed(outcome.detail)
        elif proves_able(outcome):
            self.machine_worked()
        if is_trouble(outcome):
            self._shrink(outcome.reason.value)

    def current(self) -> WorkerPressure:
        """Return how many jobs may run at once now, and why none may start."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= READING_SECONDS:
            self._reading, self._read_at = self._read(), now
        if now < self._machine_until:
            refused: StartRefusal | None = StartRefusal(
                resource=Resource.MACHINE, detail=f"its machine is sick: {self._machine_detail}"
            )
        else:
            refused = refusal(self._limits, self._reading, self._starting.count) or self._full_window(now)
        if refused is not None and is_trouble(refused):
            self._shrink(refused.resource.value)
            self._window = while_trouble_lasts(
                self._window, self._limit, since=self._overloaded_at or now, now=now
            )
            self._overloaded_at = now
        else:
            self._overloaded_at = None
        self._log_refusal(refused, now)
        at_once = slots(self._window, self._limit, now)
        self._log_slots(at_once)
        self._metrics.governed(at_once, None if refused is None else refused.resource)
        self._metrics.starts_at_once(self._most_starts)
        return WorkerPressure(
            shrunk_to=at_once if at_once < self._limit else None,
            refuses=None if refused is None else refused.resource,
            refusal="" if refused is None else refused.detail,
        )

    @property
    def startable(self) -> int | None:
        """How many more jobs may start, by the last reading; None: any number.

        After the machine failed, one may start as a trial.
        """
        if self._refused is not None:
            waited = self._clock() - self._nothing_since
            return int(out_of_patience(self._refused, waited, self._patience_seconds))
        if self._machine_failures:
            return max(0, 1 - self._starting.count)
        if self._start_seconds:
            return max(0, self._most_starts - self._starting.count)
        return startable(self._limits, self._reading.processors, self._starting.count)

    @property
    def _start_ceiling(self) -> int:
        """How many checkouts the machine's limits and the slots allow at once."""
        allowed = startable(self._limits, self._reading.processors, 0)
        return max(1, self._limit if allowed is None else min(self._limit, allowed))

    @property
    def _most_starts(self) -> int:
        """How many checkouts may be made at once now."""
        ceiling = self._start_ceiling
        return min(ceiling, self._start_window.at_once) if self._start_seconds else ceiling

    def _checked_out(self, seconds: float, at_once: int, succeeded: bool) -> None:  # noqa: FBT001  a callback
        self._start_window = after_checkout(
            self._start_window,
            TimedCheckout(seconds=seconds, at_once=at_once, succeeded=succeeded, jobs_wait=self.jobs_wait),
            target_seconds=self._start_seconds,
            most=self._start_ceiling,
            now=self._clock(),
        )

    def _full_window(self, now: float) -> StartRefusal | None:
        """Return the refusal once the window has been full for a while.

        A window that is full for a moment is the rule while jobs wait, and needs no record in the store.
        """
        if not self._start_seconds or self._starting.count < self._most_starts:
            self._full_since = None
            return None
        self._full_since = now if self._full_since is None else self._full_since
        if now - self._full_since < FULL_SECONDS:
            return None
        return full_window(self._start_window, self._starting.count, self._start_seconds)

    def _shrink(self, cause: str) -> None:
        if not self._adaptive:
            return
        now = self._clock()
        self._window = after_trouble(self._window, self._limit, now)
        self._log_slots(slots(self._window, self._limit, now), cause)

    def _log_slots(self, now_at_once: int, cause: str | None = None) -> None:
        was, self._slots_logged = self._slots_logged, now_at_once
        if now_at_once < was:
            log.warning(LogEvent.SLOTS_SHRUNK, slots=now_at_once, was=was, limit=self._limit, cause=cause)
        elif now_at_once > was:
            log.info(LogEvent.SLOTS_GROWN, slots=now_at_once, was=was, limit=self._limit)

    def _log_refusal(self, refused: StartRefusal | None, now: float) -> None:
        was, self._refused = self._refused, refused
        if refused is not None and (was is None or was.resource is not refused.resource):
            if was is None:
                self._nothing_since = now
            log.warning(LogEvent.STARTS_REFUSED, resource=refused.resource, detail=refused.detail)
        elif refused is None and was is not None:
            log.info(LogEvent.STARTS_RESUMED, resource=was.resource)


def _do_nothing() -> None:
    pass


def _note_nothing(_seconds: float, _at_once: int, _succeeded: bool) -> None:  # noqa: FBT001  a callback
    pass
