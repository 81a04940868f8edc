"""What forge-integration counts: every metric is declared here once, and each fact has one method that records it."""

from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from solstice_common.broker.protocol import BrokerHealth, PublishStatus
from solstice_common.telemetry.metrics import DeclaredMetric, declared_in

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one forge-integration, in a registry of their own.

    Labels come from closed lists and from the names of configured sources, never from what a stranger sent.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._deliveries = Counter(
            "solstice_forge_deliveries",
            "Webhook calls, by source, decision (accepted, ignored, duplicate, refused) and reason.",
            ("source", "decision", "reason"),
            registry=registry,
        )
        self._seconds = Histogram(
            "solstice_forge_webhook_seconds",
            "Time from a webhook's headers to its answer.",
            ("source",),
            buckets=SECONDS,
            registry=registry,
        )
        self._backlog = Gauge(
            "solstice_forge_inbox_backlog",
            "Requests in the inbox that are not with the broker yet.",
            registry=registry,
        )
        self._queued = Gauge(
            "solstice_forge_queue_ready",
            "Requests in the jobs' queue that no orchestrator has taken; 0 while the broker cannot be asked.",
            registry=registry,
        )
        self._publishes = Counter(
            "solstice_forge_publishes",
            "Requests offered to the broker, by its answer.",
            ("status",),
            registry=registry,
        )
        self._refused = Counter(
            "solstice_forge_http_refused",
            "Connections and requests refused before any route saw them, by reason.",
            ("reason",),
            registry=registry,
        )
        self._jobs = Counter(
            "solstice_forge_api_jobs",
            "Jobs asked for through the API, by outcome: accepted, duplicate, or the reason of the refusal.",
            ("outcome",),
            registry=registry,
        )
        self._connected = Gauge(
            "solstice_forge_broker_connected", "1 while connected to the broker.", registry=registry
        )
        self._blocked = Gauge(
            "solstice_forge_broker_blocked",
            "1 while the broker takes no publishes (memory or disk alarm).",
            registry=registry,
        )
        self._status_messages = Counter(
            "solstice_forge_status_messages",
            "Messages about jobs, by what became of them (wanted, stale, no_source, no_credentials, refused).",
            ("outcome",),
            registry=registry,
        )
        self._status_calls = Counter(
            "solstice_forge_status_calls",
            "Attempts at telling a forge, by source and outcome (told, failed, limited, dead, spared).",
            ("source", "outcome"),
            registry=registry,
        )
        self._statuses_pending = Gauge(
            "solstice_forge_statuses_pending",
            "Statuses that a forge is still to be told; counted by the replica that tells, 0 at the others.",
            registry=registry,
        )
        self._status_seconds = Histogram(
            "solstice_forge_status_seconds",
            "Time from a status's arrival to the forge's answer that it shows it.",
            ("source",),
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200),
            registry=registry,
        )
        self._lookups = Counter(
            "solstice_forge_lookups",
            "Deliveries for which a forge was asked, by source and outcome (answered, postponed, declined).",
            ("source", "outcome"),
            registry=registry,
        )
        self._reconciled = Counter(
            "solstice_forge_reconciled",
            "What came of comparing a source with its forge: deliveries asked for again (sent) or given up, missed heads by what"
            " became of them (accepted, duplicate, ignored), heads met for the first time (baseline), troubles.",
            ("source", "outcome"),
            registry=registry,
        )
        # Kept at hand: finding a child by its labels costs more than counting.
        self._published = {status: self._publishes.labels(status.value) for status in PublishStatus}
        self._delivered = cache(self._deliveries.labels)
        self._took = cache(self._seconds.labels)
        ProcessCollector(registry=registry)

    def delivery(self, source: str, decision: str, reason: str, seconds: float) -> None:
        """A webhook call was answered, this long after its headers were here."""
        self._delivered(source, decision, reason).inc()
        self._took(source).observe(seconds)

    def job_requested(self, outcome: str) -> None:
        """A program that may ask for jobs asked for one: `accepted`, `duplicate`, or why it was refused."""
        self._jobs.labels(outcome).inc()

    def queued(self, count: int) -> None:
        """So many requests lie in the jobs' queue."""
        self._queued.set(count)

    def published(self, status: PublishStatus, count: int = 1) -> None:
        """Requests were offered to the broker, and this was its answer."""
        self._published[status].inc(count)

    def status_taken(self, outcome: str, count: int = 1) -> None:
        """Messages about jobs were taken from the broker, and this became of them."""
        self._status_messages.labels(outcome).inc(count)

    def statuses_pending(self, count: int) -> None:
        """So many statuses are to be told."""
        self._statuses_pending.set(count)

    def status_call(self, source: str, outcome: str) -> None:
        """A forge was called about a status, and this came of it."""
        self._status_calls.labels(source, outcome).inc()

    def status_reported(self, source: str, seconds: float) -> None:
        """A forge shows a status, this long after it arrived here."""
        self._status_calls.labels(source, "told").inc()
        self._status_seconds.labels(source).observe(seconds)

    def lookup(self, source: str, outcome: str) -> None:
        """A forge was asked for what a delivery lacks, and this came of it."""
        self._lookups.labels(source, outcome).inc()

    def http_refused(self, reason: str) -> None:
        """A connection or request was refused before any route saw it."""
        self._refused.labels(reason).inc()

    def reconciled(self, source: str, outcome: str, count: int = 1) -> None:
        """A source was compared with its forge, and so much came of it."""
        self._reconciled.labels(source, outcome).inc(count)

    def render(self, backlog: int, broker: BrokerHealth) -> bytes:
        """Everything in Prometheus' text form (`CONTENT_TYPE`), with the gauges as they are now."""
        self._backlog.set(backlog)
        self._connected.set(broker.connected)
        self._blocked.set(broker.blocked is not None)
        return generate_latest(self._registry)

    def declared(self) -> tuple[DeclaredMetric, ...]:
        """Our own metrics (not those of the process collector), for the documentation and its test."""
        return declared_in(vars(self).values())
