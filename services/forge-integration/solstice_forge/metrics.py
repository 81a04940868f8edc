"""The metrics of forge-integration, each declared here once.

Each fact has one method that records it.
"""

from functools import cache
from typing import Final

from solstice_common.broker.protocol import BrokerHealth, PublishStatus
from solstice_common.telemetry.metrics import MetricsTable, counter, gauge, histogram

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics(MetricsTable):
    """The metrics of one forge-integration, in a registry of their own.

    Labels come from closed lists and from the names of configured sources, never from untrusted input.
    """

    _deliveries = counter(
        "solstice_forge_deliveries_total",
        "Webhook calls, by source, decision (accepted, ignored, duplicate, refused) and reason.",
        labels=("source", "decision", "reason"),
    )
    _seconds = histogram(
        "solstice_forge_webhook_seconds",
        "Time from a webhook's headers to its answer.",
        labels=("source",),
        buckets=SECONDS,
    )
    _backlog = gauge(
        "solstice_forge_inbox_backlog", "Requests in the inbox that are not with the broker yet."
    )
    _queued = gauge(
        "solstice_forge_queue_ready",
        "Requests in the jobs' queue that no orchestrator has taken; 0 while the broker cannot be asked.",
    )
    _publishes = counter(
        "solstice_forge_publishes_total", "Requests offered to the broker, by its answer.", labels=("status",)
    )
    _refused = counter(
        "solstice_forge_http_refused_total",
        "Connections and requests refused before any route saw them, by reason.",
        labels=("reason",),
    )
    _jobs = counter(
        "solstice_forge_api_jobs_total",
        "Jobs asked for through the API, by outcome: accepted, duplicate, or the reason of the refusal.",
        labels=("outcome",),
    )
    _dropped = counter(
        "solstice_forge_dead_letters_dropped_total",
        "Messages dropped in place of becoming dead letters (DEAD_LETTER_ENABLED=false), by reason.",
        labels=("reason",),
    )
    _connected = gauge("solstice_forge_broker_connected", "1 while connected to the broker.")
    _blocked = gauge(
        "solstice_forge_broker_blocked", "1 while the broker takes no publishes (memory or disk alarm)."
    )
    _degraded = gauge(
        "solstice_forge_broker_degraded",
        "1 while the broker is less durable than it could be; /readyz names the setting to change.",
    )
    _status_messages = counter(
        "solstice_forge_status_messages_total",
        "Messages about jobs, by what became of them (wanted, stale, no_source, no_credentials, refused).",
        labels=("outcome",),
    )
    _status_calls = counter(
        "solstice_forge_status_calls_total",
        "Calls that report a status to a forge, by source and outcome (reported, failed, limited, dead, spared).",
        labels=("source", "outcome"),
    )
    _statuses_pending = gauge(
        "solstice_forge_statuses_pending",
        "Statuses that are not reported to their forge yet; counted by the replica that reports, 0 at the others.",
    )
    _status_seconds = histogram(
        "solstice_forge_status_seconds",
        "Time from a status's arrival to the forge's answer that it shows it.",
        labels=("source",),
        buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200),
    )
    _lookups = counter(
        "solstice_forge_lookups_total",
        "Deliveries for which a forge was asked, by source and outcome (answered, postponed, declined).",
        labels=("source", "outcome"),
    )
    _reconciled = counter(
        "solstice_forge_reconciled_total",
        "What came of comparing a source with its forge: deliveries asked for again (sent) or given up, missed heads by what"
        " became of them (accepted, duplicate, ignored), heads met for the first time (baseline), troubles.",
        labels=("source", "outcome"),
    )

    _spans = counter(
        "solstice_forge_trace_spans_total",
        "Spans for the OpenTelemetry collector, by what became of them: sent, refused, dropped, or postponed (sent again later).",
        labels=("outcome",),
        at_zero=("sent", "refused", "dropped", "postponed"),
    )

    def __init__(self) -> None:
        super().__init__()
        # Cached: finding a child by its labels costs more than counting.
        self._published = {status: self._publishes.labels(status.value) for status in PublishStatus}
        self._delivered = cache(self._deliveries.labels)
        self._took = cache(self._seconds.labels)

    def delivery(self, source: str, decision: str, reason: str, seconds: float) -> None:
        """Record an answered webhook call, and the time since its headers arrived."""
        self._delivered(source, decision, reason).inc()
        self._took(source).observe(seconds)

    def job_requested(self, outcome: str) -> None:
        """Count a job that a program asked for.

        The outcome is `accepted`, `duplicate`, or why it was refused.
        """
        self._jobs.labels(outcome).inc()

    def dead_letter_dropped(self, reason: str) -> None:
        """Count a message that was dropped instead of becoming a dead letter."""
        self._dropped.labels(reason).inc()

    def queued(self, count: int) -> None:
        """Record how many requests are in the jobs' queue."""
        self._queued.set(count)

    def published(self, status: PublishStatus, count: int = 1) -> None:
        """Count requests that were sent to the broker, by its answer."""
        self._published[status].inc(count)

    def status_taken(self, outcome: str, count: int = 1) -> None:
        """Count messages about jobs that were taken from the broker, by outcome."""
        self._status_messages.labels(outcome).inc(count)

    def statuses_pending(self, count: int) -> None:
        """Record how many statuses wait to be reported."""
        self._statuses_pending.set(count)

    def status_call(self, source: str, outcome: str) -> None:
        """Count a call to a forge about a status, by outcome."""
        self._status_calls.labels(source, outcome).inc()

    def status_reported(self, source: str, seconds: float) -> None:
        """Record a reported status, and the time since it arrived here."""
        self._status_calls.labels(source, "reported").inc()
        self._status_seconds.labels(source).observe(seconds)

    def lookup(self, source: str, outcome: str) -> None:
        """Count a lookup at a forge, by outcome."""
        self._lookups.labels(source, outcome).inc()

    def http_refused(self, reason: str) -> None:
        """Count a connection or request that was refused before any route handled it."""
        self._refused.labels(reason).inc()

    def reconciled(self, source: str, outcome: str, count: int = 1) -> None:
        """Count the outcomes of comparing a source with its forge."""
        self._reconciled.labels(source, outcome).inc(count)

    def spans(self, outcome: str, count: int) -> None:
        """Count spans that were made for the collector, by what became of them."""
        self._spans.labels(outcome).inc(count)

    def render(self, backlog: int, broker: BrokerHealth) -> bytes:
        """Return everything in Prometheus' text form (`CONTENT_TYPE`), with the current gauges."""
        self._backlog.set(backlog)
        self._connected.set(broker.connected)
        self._blocked.set(broker.blocked is not None)
        self._degraded.set(broker.degraded is not None)
        return self.text()
