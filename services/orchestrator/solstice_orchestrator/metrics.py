"""The metrics of the orchestrator, each declared once, and the methods that record them."""

from collections import Counter as Counted
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from solstice_common.broker.protocol import BrokerHealth, PublishStatus
from solstice_common.messages.states import JobState
from solstice_common.telemetry.metrics import DeclaredMetric, declared_in
from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.queue_times.forecast import ForecastAccuracy, ForecastCheck
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView

SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)


class Metrics:
    """The metrics of one orchestrator, in a registry of their own; recording one costs about a microsecond.

    Not for several threads at once: the gauges are set and rendered in one turn of the event loop.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "solstice_requests",
            "Job requests taken from the queue, by what became of them; reason tells why one was refused.",
            ("verdict", "reason"),
            registry=registry,
        )
        self._cancels = Counter(
            "solstice_cancels",
            "Cancel requests taken from the queue, by what came of them; reason tells why one was refused.",
            ("verdict", "reason"),
            registry=registry,
        )
        self._http_refused = Counter(
            "solstice_http_refused",
            "Connections and requests refused before any route saw them, by reason.",
            ("reason",),
            registry=registry,
        )
        self._jobs = Gauge(
            "solstice_jobs", "Unfinished jobs, by state and label.", ("state", "label"), registry=registry
        )
        self._finished = Counter(
            "solstice_jobs_finished",
            "Attempts at jobs that ended, by the state they led to and the reason.",
            ("state", "reason"),
            registry=registry,
        )
        self._wait = Histogram(
            "solstice_job_wait_seconds",
            "Time from a job's creation to its first claim.",
            ("label",),
            buckets=SECONDS,
            registry=registry,
        )
        self._run = Histogram(
            "solstice_job_run_seconds",
            "Time from an attempt's claim to its end.",
            ("label", "state"),
            buckets=SECONDS,
            registry=registry,
        )
        self._renewals = Counter(
            "solstice_lease_renewals", "Leases of running attempts that were prolonged.", registry=registry
        )
        self._lost = Counter(
            "solstice_leases_lost", "Attempts that were no longer ours at their renewal.", registry=registry
        )
        self._outbox = Counter(
            "solstice_outbox_publishes",
            "Status messages published from the outbox, by the broker's answer.",
            ("status",),
            registry=registry,
        )
        self._connected = Gauge(
            "solstice_broker_connected", "1 while connected to the broker.", registry=registry
        )
        self._blocked = Gauge(
            "solstice_broker_blocked",
            "1 while the broker takes no publishes (memory or disk alarm).",
            registry=registry,
        )
        self._starts = Counter(
            "solstice_expected_starts",
            "Sampled jobs by how their start stood to the forecast: within its range, early, or late.",
            ("met",),
            registry=registry,
        )
        self._start_error = Histogram(
            "solstice_expected_start_error_seconds",
            "How far outside its forecast's range a sampled job started; 0 within.",
            buckets=SECONDS,
            registry=registry,
        )
        self._workers = Gauge(
            "solstice_workers",
            "Workers that are there by what they do about new jobs, and lost ones.",
            ("state",),
            registry=registry,
        )
        self._quarantines = Counter(
            "solstice_worker_quarantines",
            "Times that this worker was quarantined, by failures in a row or by an order.",
            registry=registry,
        )
        self._slots = Gauge(
            "solstice_slots",
            "Jobs that this worker takes at once now: fewer than it has slots for after failures or under load.",
            registry=registry,
        )
        self._refusing = Gauge(
            "solstice_governor_refusing",
            "1 while this worker starts no jobs for want of the resource.",
            ("resource",),
            registry=registry,
        )
        self._backlog = Gauge(
            "solstice_backlog",
            "Runs to plan and jobs that wait, counted up to MAX_BACKLOG; 0 where there is no such limit.",
            registry=registry,
        )
        self._held = Gauge(
            "solstice_intake_held",
            "1 while requests are left in the queue because as many wait as may (MAX_BACKLOG).",
            registry=registry,
        )
        self._delayed = Gauge(
            "solstice_delayed_runs",
            "Runs that are to start later: no backlog, their time has not come.",
            registry=registry,
        )
        self._ticks = Counter(
            "solstice_schedule_ticks",
            "Ticks of schedules that this orchestrator settled, by what became of them and why.",
            ("state", "reason"),
            registry=registry,
        )
        self._tick_lateness = Histogram(
            "solstice_schedule_tick_lateness_seconds",
            "How late a tick of a schedule became a run.",
            buckets=SECONDS,
            registry=registry,
        )
        for resource in Resource:
            self._refusing.labels(resource.value)
        for verdict in ("admitted", "duplicate"):
            self._requests.labels(verdict, "")
        for verdict in ("ended", "nothing"):
            self._cancels.labels(verdict, "")
        for accuracy in ForecastAccuracy:
            self._starts.labels(accuracy.value)
        for status in PublishStatus:
            self._outbox.labels(status.value)
        ProcessCollector(registry=registry)

    def requests_admitted(self, count: int = 1) -> None:
        """Requests became runs."""
        self._requests.labels("admitted", "").inc(count)

    def requests_duplicate(self, count: int = 1) -> None:
        """Requests, or ones with their idempotency key, were runs already."""
        self._requests.labels("duplicate", "").inc(count)

    def request_refused(self, reason: str) -> None:
        """A message went to the dead letters; `reason` is one word of a closed list."""
        self._requests.labels("refused", reason).inc()

    def cancel_kept(self, verdict: str) -> None:
        """A cancel request `ended` runs, or there was `nothing` to end."""
        self._cancels.labels(verdict, "").inc()

    def cancel_refused(self, reason: str) -> None:
        """As `request_refused`."""
        self._cancels.labels("refused", reason).inc()

    def job_started(self, label: str, wait_seconds: float) -> None:
        """A job was claimed for the first time, this long after it was created."""
        self._wait.labels(label).observe(max(0.0, wait_seconds))

    def job_finished(self, label: str, outcome: Outcome, run_seconds: float) -> None:
        """An attempt ended, this long after its claim."""
        self._finished.labels(outcome.state.value, outcome.reason.value).inc()
        self._run.labels(label, outcome.state.value).observe(max(0.0, run_seconds))

    def started_as_expected(self, check: ForecastCheck) -> None:
        """A job started whose start had been forecast."""
        self._starts.labels(check.accuracy.value).inc()
        self._start_error.observe(check.error_seconds)

    def leases_renewed(self, count: int = 1) -> None:
        self._renewals.inc(count)

    def leases_lost(self, count: int = 1) -> None:
        self._lost.inc(count)

    def quarantined(self) -> None:
        """This worker gets no jobs for a while."""
        self._quarantines.inc()

    def governed(self, at_once: int, refuses: Resource | None) -> None:
        """This worker takes so many jobs at once, and starts none while it is short of something."""
        self._slots.set(at_once)
        for resource in Resource:
            self._refusing.labels(resource.value).set(resource is refuses)

    def backlog(self, count: int, *, held: bool) -> None:
        """So much waits in the store, and intake is held for it, or not."""
        self._backlog.set(count)
        self._held.set(held)

    def tick_settled(self, state: TickState, reason: TickReason, ticks: int, late_seconds: float) -> None:
        """A tick of a schedule, or several that were missed, came to an end so long after it was due."""
        self._ticks.labels(state.value, reason.value).inc(ticks)
        if state is TickState.FIRED:
            self._tick_lateness.observe(late_seconds)

    def http_refused(self, reason: str) -> None:
        """A connection or request was refused before any route saw it."""
        self._http_refused.labels(reason).inc()

    def outbox_published(self, status: PublishStatus, count: int = 1) -> None:
        """Status messages were offered to the broker, and this was its answer."""
        self._outbox.labels(status.value).inc(count)

    def render(
        self,
        counts: Mapping[tuple[JobState, str], int],
        broker: BrokerHealth,
        workers: Iterable[WorkerView] = (),
        *,
        delayed: int = 0,
    ) -> bytes:
        """Everything in Prometheus' text form (`CONTENT_TYPE`), with the gauges as they are now."""
        by_state = Counted(
            worker.state.value if worker.presence is Presence.ALIVE else worker.presence.value
            for worker in workers
        )
        for state in (*WorkerState, Presence.LOST):
            self._workers.labels(state.value).set(by_state[state.value])
        self._jobs.clear()
        for (state, label), count in counts.items():
            self._jobs.labels(state.value, label).set(count)
        self._delayed.set(delayed)
        self._connected.set(broker.connected)
        self._blocked.set(broker.blocked is not None)
        return generate_latest(self._registry)

    def declared(self) -> tuple[DeclaredMetric, ...]:
        """Our own metrics (not those of the process collector), for the documentation and its test."""
        return declared_in(vars(self).values())
