"""The metrics of the orchestrator, each declared once, and the methods that record them."""

from collections import Counter as Counted
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from solstice_common.broker.protocol import BrokerHealth, PublishStatus, QueueDepth
from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_common.telemetry.metrics import MetricsTable, counter, gauge, histogram
from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.processes.egress.egress_facts import EgressResult
from solstice_orchestrator.queue_times.forecast import ForecastAccuracy, ForecastCheck
from solstice_orchestrator.queue_times.waits import NO_LAG, WaitingClass, WatermarkLag
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView, served_labels

NONE_WAIT: Final[Mapping[Priority, WaitingClass]] = MappingProxyType({})
SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)


class Metrics(MetricsTable):
    """The metrics of one orchestrator, in a registry of their own.

    Recording one costs about a microsecond.

    Not thread-safe: the gauges are set and rendered in one iteration of the event loop.
    """

    _requests = counter(
        "solstice_requests_total",
        "Job requests taken from the queue, by outcome and priority class; reason says why one was refused.",
        labels=("verdict", "reason", "priority"),
        at_zero=((verdict, "", each) for verdict in ("admitted", "duplicate") for each in Priority),
    )
    _dead_letters = counter(
        "solstice_dead_letters_total",
        "Requests that this orchestrator made dead letters, by priority class: refused, or failed for the infrastructure.",
        labels=("priority",),
        at_zero=Priority,
    )
    _cancels = counter(
        "solstice_cancels_total",
        "Cancel requests taken from the queue, by outcome; reason says why one was refused.",
        labels=("verdict", "reason"),
        at_zero=(("ended", ""), ("nothing", "")),
    )
    _signed = counter(
        "solstice_signed_messages_total",
        "Requests and cancel requests that a key of VERIFY_KEYS had signed, by its name.",
        labels=("key",),
    )
    _http_refused = counter(
        "solstice_http_refused_total",
        "Connections and requests refused before any route saw them, by reason.",
        labels=("reason",),
    )
    _jobs = gauge("solstice_jobs", "Unfinished jobs, by state and label.", labels=("state", "label"))
    _unserved = gauge(
        "solstice_jobs_unserved",
        "Jobs that wait for a label for which no worker that is there has a slot.",
        labels=("label",),
    )
    _waiting = gauge(
        "solstice_jobs_waiting", "Jobs that wait, by priority class.", labels=("priority",), at_zero=Priority
    )
    _waiting_oldest = gauge(
        "solstice_jobs_waiting_oldest_seconds",
        "For how long the first of them has waited; 0 without any.",
        labels=("priority",),
        at_zero=Priority,
    )
    _refs_behind = gauge(
        "solstice_refs_behind", "Refs that have a push which has not ended, behind the newest one that has."
    )
    _watermark_lag = gauge(
        "solstice_watermark_lag_seconds",
        "The largest lag of a ref: for how long the first push behind its watermark is pending; 0 without any.",
    )
    _attempts_finished = counter(
        "solstice_attempts_finished_total",
        "Attempts at jobs that ended, by the state of the job after it and the reason.",
        labels=("state", "reason"),
    )
    _wait = histogram(
        "solstice_job_wait_seconds",
        "Time from a job's creation to its first claim.",
        labels=("label", "priority"),
        buckets=SECONDS,
    )
    _retries = counter(
        "solstice_retries_total",
        "Attempts that this worker began after a job's first one, by label and priority class.",
        labels=("label", "priority"),
    )
    _run = histogram(
        "solstice_job_run_seconds",
        "Time from an attempt's claim to its end.",
        labels=("label", "state"),
        buckets=SECONDS,
    )
    _provisioning = histogram(
        "solstice_job_provisioning_seconds",
        "Time from an attempt's checkout until its container or VM is ready, or is given up.",
        labels=("label", "state"),
        buckets=SECONDS,
    )
    _egress = counter(
        "solstice_egress_requests_total",
        "Requests of untrusted jobs for hosts outside (UNTRUSTED_EGRESS), by what became of them; counted when the attempt ends.",
        labels=("result",),
        at_zero=EgressResult,
    )
    _caches = counter(
        "solstice_cache_operations_total",
        "Caches that jobs restored or saved, by what came of it; refused: for the job's files, error: for the store.",
        labels=("operation", "result"),
        at_zero=(("restore", "hit"), ("restore", "miss"), ("restore", "error"), ("save", "error")),
    )
    _cache_bytes = counter(
        "solstice_cache_bytes_total", "Bytes of files of restored and saved caches.", labels=("operation",)
    )
    _cache_seconds = histogram(
        "solstice_cache_seconds", "Time to restore or save a cache.", labels=("operation",), buckets=SECONDS
    )
    caches_evicted = counter(
        "solstice_caches_evicted_total",
        "Caches removed because nothing used them, or others needed the room.",
    )
    _renewals = counter("solstice_lease_renewals_total", "Leases of running attempts that were prolonged.")
    _lost = counter("solstice_leases_lost_total", "Attempts that were no longer ours at their renewal.")
    _outbox = counter(
        "solstice_outbox_publishes_total",
        "Status messages published from the outbox, by the broker's answer.",
        labels=("status",),
        at_zero=PublishStatus,
    )
    _spans = counter(
        "solstice_trace_spans_total",
        "Spans for the OpenTelemetry collector, by what became of them: sent, refused, or postponed (sent again later).",
        labels=("outcome",),
        at_zero=("sent", "refused", "postponed"),
    )
    _dropped = counter(
        "solstice_dead_letters_dropped_total",
        "Messages dropped in place of becoming dead letters (DEAD_LETTER_ENABLED=false), by reason.",
        labels=("reason",),
    )
    _queue_ready = gauge(
        "solstice_queue_depth", "Messages that wait in a queue.", labels=("transport", "queue")
    )
    _queue_pending = gauge(
        "solstice_queue_pending",
        "Messages delivered and not settled, where the broker says so.",
        labels=("transport", "queue"),
    )
    _queue_oldest = gauge(
        "solstice_queue_oldest_seconds",
        "Age of the oldest message of a queue, where the broker says so.",
        labels=("transport", "queue"),
    )
    _queue_lease = gauge(
        "solstice_queue_lease_seconds",
        "Rest of the lease that ends next, where consumers or deliveries have leases.",
        labels=("transport", "queue"),
    )
    _connected = gauge("solstice_broker_connected", "1 while connected to the broker.")
    _blocked = gauge(
        "solstice_broker_blocked", "1 while the broker takes no publishes (memory or disk alarm)."
    )
    _degraded = gauge(
        "solstice_broker_degraded",
        "1 while the broker is less durable than it could be; /readyz names the setting to change.",
    )
    _starts = counter(
        "solstice_expected_starts_total",
        "Sampled jobs by how their start stood to the forecast: within its range, early, or late.",
        labels=("met",),
        at_zero=ForecastAccuracy,
    )
    _start_error = histogram(
        "solstice_expected_start_error_seconds",
        "How far outside its forecast's range a sampled job started; 0 within.",
        buckets=SECONDS,
    )
    _workers = gauge(
        "solstice_workers",
        "Workers that are there by what they do about new jobs, and lost ones.",
        labels=("state",),
    )
    _quarantines = counter(
        "solstice_worker_quarantines_total",
        "Times that this worker was quarantined, by failures in a row or by an order.",
    )
    _slots = gauge(
        "solstice_slots",
        "Jobs that this worker takes at once now: fewer than it has slots for after failures or under load.",
    )
    _refusing = gauge(
        "solstice_governor_refusing",
        "1 while this worker starts no jobs for lack of the resource.",
        labels=("resource",),
        at_zero=Resource,
    )
    _starts_at_once = gauge(
        "solstice_starts_at_once",
        "Jobs that this worker checks out at once now: what slots and GOVERNOR allow, or less by START_SECONDS.",
    )
    _backlog = gauge(
        "solstice_backlog",
        "Runs to plan and jobs that wait, counted up to MAX_BACKLOG; 0 where there is no such limit.",
    )
    _intake_limit = gauge(
        "solstice_intake_limit",
        "The backlog at which intake pauses: MAX_BACKLOG, or less by INTAKE_SECONDS; 0 where there is no limit.",
    )
    _intake_paused = gauge(
        "solstice_intake_paused",
        "1 while requests are left in the queue because as many wait as may (MAX_BACKLOG).",
    )
    _delayed = gauge(
        "solstice_delayed_runs", "Runs that are to start later: no backlog, their time has not come."
    )
    _ticks = counter(
        "solstice_schedule_ticks_total",
        "Ticks of schedules that this orchestrator settled, by what became of them and why.",
        labels=("state", "reason"),
    )
    _tick_lateness = histogram(
        "solstice_schedule_tick_lateness_seconds",
        "How late a tick of a schedule became a run.",
        buckets=SECONDS,
    )

    def __init__(self, *, dead_letter_enabled: bool = True) -> None:
        super().__init__()
        self._dead_letter_enabled = dead_letter_enabled

    def requests_admitted(self, count: int = 1, priority: Priority = Priority.DEFAULT) -> None:
        """Count requests of a class that became runs."""
        self._requests.labels("admitted", "", priority).inc(count)

    def requests_duplicate(self, count: int = 1, priority: Priority = Priority.DEFAULT) -> None:
        """Count requests that were runs already, also by their idempotency key."""
        self._requests.labels("duplicate", "", priority).inc(count)

    def request_refused(self, reason: str, priority: Priority = Priority.DEFAULT) -> None:
        """Count a message that becomes a dead letter.

        `reason` is one word of a closed list.
        """
        self._requests.labels("refused", reason, priority).inc()
        self.request_dead(priority)

    def request_dead(self, priority: Priority) -> None:
        """Count a request of this class that became a dead letter, where there are any."""
        if self._dead_letter_enabled:
            self._dead_letters.labels(priority).inc()

    def cancel_stored(self, verdict: str) -> None:
        """Count a cancel request that `ended` runs, or had `nothing` to end."""
        self._cancels.labels(verdict, "").inc()

    def cancel_refused(self, reason: str) -> None:
        """Count a cancel request that became a dead letter."""
        self._cancels.labels("refused", reason).inc()

    def signed_by(self, key_name: str, count: int = 1) -> None:
        """Count messages that a valid key had signed."""
        self._signed.labels(key_name).inc(count)

    def job_started(self, label: str, wait_seconds: float, priority: Priority = Priority.DEFAULT) -> None:
        """Record the first claim of a job, and the time since its creation."""
        self._wait.labels(label, priority).observe(max(0.0, wait_seconds))

    def job_retried(self, label: str, priority: Priority) -> None:
        """Count an attempt after a job's first one."""
        self._retries.labels(label, priority).inc()

    def attempt_finished(self, label: str, outcome: Outcome, run_seconds: float) -> None:
        """Record the end of an attempt, and the time since its claim."""
        self._attempts_finished.labels(outcome.state.value, outcome.reason.value).inc()
        self._run.labels(label, outcome.state.value).observe(max(0.0, run_seconds))
        if outcome.provisioning_seconds is not None:
            self._provisioning.labels(label, outcome.state.value).observe(outcome.provisioning_seconds)
        for result, count in outcome.egress:
            self._egress.labels(result).inc(count)

    def cache_used(self, operation: str, result: str, content_bytes: int, seconds: float) -> None:
        self._caches.labels(operation, result).inc()
        self._cache_bytes.labels(operation).inc(content_bytes)
        self._cache_seconds.labels(operation).observe(seconds)

    def started_as_expected(self, check: ForecastCheck) -> None:
        """Record the start of a job with a forecast."""
        self._starts.labels(check.accuracy.value).inc()
        self._start_error.observe(check.error_seconds)

    def leases_renewed(self, count: int = 1) -> None:
        self._renewals.inc(count)

    def leases_lost(self, count: int = 1) -> None:
        self._lost.inc(count)

    def quarantined(self) -> None:
        """Count a quarantine of this worker."""
        self._quarantines.inc()

    def governed(self, at_once: int, refuses: Resource | None) -> None:
        """Record how many jobs the worker takes at once, and what it lacks.

        While it lacks a resource it starts none.
        """
        self._slots.set(at_once)
        for resource in Resource:
            self._refusing.labels(resource.value).set(resource is refuses)

    def starts_at_once(self, most: int) -> None:
        """Record how many jobs the worker may check out at once."""
        self._starts_at_once.set(most)

    def backlog(self, count: int, *, limit: int, paused: bool) -> None:
        """Record the backlog of the store, its limit, and whether intake is paused for it."""
        self._backlog.set(count)
        self._intake_limit.set(limit)
        self._intake_paused.set(paused)

    def tick_settled(self, state: TickState, reason: TickReason, ticks: int, late_seconds: float) -> None:
        """Record the end of a tick, or of several missed ones, and its delay."""
        self._ticks.labels(state.value, reason.value).inc(ticks)
        if state is TickState.FIRED:
            self._tick_lateness.observe(late_seconds)

    def http_refused(self, reason: str) -> None:
        """Count a connection or request that was refused before any route handled it."""
        self._http_refused.labels(reason).inc()

    def dead_letter_dropped(self, reason: str) -> None:
        """Count a message that was dropped instead of becoming a dead letter."""
        self._dropped.labels(reason).inc()

    def queues(self, transport: str, depths: Mapping[str, QueueDepth]) -> None:
        """Record the depths of the queues; a missing one is unknown now."""
        gauges = (self._queue_ready, self._queue_pending, self._queue_oldest, self._queue_lease)
        for metric in gauges:
            metric.clear()
        for queue, depth in depths.items():
            values = (depth.ready, depth.pending, depth.oldest_seconds, depth.lease_seconds)
            for metric, value in zip(gauges, values, strict=True):
                if value is not None:
                    metric.labels(transport, queue).set(value)

    def spans(self, outcome: str, count: int) -> None:
        """Count spans that were made for the collector, by what became of them."""
        self._spans.labels(outcome).inc(count)

    def outbox_published(self, status: PublishStatus, count: int = 1) -> None:
        """Count status messages that were sent to the broker, by its answer."""
        self._outbox.labels(status.value).inc(count)

    def render(
        self,
        counts: Mapping[tuple[JobState, str], int],
        broker: BrokerHealth,
        workers: Iterable[WorkerView] = (),
        *,
        delayed: int = 0,
        waiting: Mapping[Priority, WaitingClass] = NONE_WAIT,
        lag: WatermarkLag = NO_LAG,
    ) -> bytes:
        """Everything in Prometheus' text form (`CONTENT_TYPE`), with the current gauges."""
        present = tuple(workers)
        by_state = Counted(
            worker.state.value if worker.presence is Presence.ALIVE else worker.presence.value
            for worker in present
        )
        for state in (*WorkerState, Presence.LOST):
            self._workers.labels(state.value).set(by_state[state.value])
        served = served_labels(present)
        self._jobs.clear()
        self._unserved.clear()
        for (state, label), count in counts.items():
            self._jobs.labels(state.value, label).set(count)
            if state is JobState.WAITING and label not in served:
                self._unserved.labels(label).set(count)
        for priority in Priority:
            of_class = waiting.get(priority)
            self._waiting.labels(priority).set(of_class.count if of_class else 0)
            self._waiting_oldest.labels(priority).set(of_class.oldest_seconds if of_class else 0.0)
        self._delayed.set(delayed)
        self._refs_behind.set(lag.refs)
        self._watermark_lag.set(lag.largest_seconds)
        self._connected.set(broker.connected)
        self._blocked.set(broker.blocked is not None)
        self._degraded.set(broker.degraded is not None)
        return self.text()
