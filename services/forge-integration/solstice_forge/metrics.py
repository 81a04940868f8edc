"""What forge-integration counts: every metric is declared here once, and each fact has one method that records it."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from solstice_common.broker.protocol import BrokerHealth, PublishStatus
from solstice_common.metrics import Declared, declared_in

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
        self._publishes = Counter(
            "solstice_forge_publishes",
            "Requests offered to the broker, by its answer.",
            ("status",),
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
        for status in PublishStatus:
            self._publishes.labels(status.value)
        ProcessCollector(registry=registry)

    def delivery(self, source: str, decision: str, reason: str, seconds: float) -> None:
        """A webhook call was answered, this long after its headers were here."""
        self._deliveries.labels(source, decision, reason).inc()
        self._seconds.labels(source).observe(seconds)

    def published(self, status: PublishStatus, count: int = 1) -> None:
        """Requests were offered to the broker, and this was its answer."""
        self._publishes.labels(status.value).inc(count)

    def render(self, backlog: int, broker: BrokerHealth) -> bytes:
        """Everything in Prometheus' text form (`CONTENT_TYPE`), with the gauges as they are now."""
        self._backlog.set(backlog)
        self._connected.set(broker.connected)
        self._blocked.set(broker.blocked is not None)
        return generate_latest(self._registry)

    def declared(self) -> tuple[Declared, ...]:
        """Our own metrics (not those of the process collector), for the documentation and its test."""
        return declared_in(vars(self).values())
