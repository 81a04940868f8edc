"""Makes metrics and their documentation from declarations in a class body."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_1_0_0

Kind = TypeVar("Kind", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class DeclaredMetric(Generic[Kind]):
    """One metric as a table of metrics declares it, and as the documentation lists it."""

    make: Callable[..., Kind]
    type: str
    name: str
    help: str
    labels: tuple[str, ...]
    at_zero: tuple[str | tuple[str, ...], ...] = ()
    """Values of the labels that are shown before anything is recorded for them."""

    if TYPE_CHECKING:

        def __get__(self, table: "MetricsTable", owner: object) -> Kind:
            """Return the metric of an instance.

            Each instance has a metric of its own under that name.
            """


def counter(
    name: str,
    help_text: str,
    *,
    labels: tuple[str, ...] = (),
    at_zero: Iterable[str | tuple[str, ...]] = (),
) -> DeclaredMetric[Counter]:
    """Declare a metric that only grows; its name ends in `_total`."""
    return DeclaredMetric(Counter, "counter", name, help_text, labels, tuple(at_zero))


def gauge(
    name: str,
    help_text: str,
    *,
    labels: tuple[str, ...] = (),
    at_zero: Iterable[str | tuple[str, ...]] = (),
) -> DeclaredMetric[Gauge]:
    """Declare a metric that shows how something is now."""
    return DeclaredMetric(Gauge, "gauge", name, help_text, labels, tuple(at_zero))


def histogram(
    name: str, help_text: str, *, labels: tuple[str, ...] = (), buckets: tuple[float, ...]
) -> DeclaredMetric[Histogram]:
    """Declare a metric of the distribution of values over `buckets`."""
    return DeclaredMetric(functools.partial(Histogram, buckets=buckets), "histogram", name, help_text, labels)


class MetricsTable:
    """A registry with the metrics that the class body declares.

    The metrics of the process are in it too.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        # A child class has the metrics of its parent, too.
        inherited = [item for each in reversed(type(self).__mro__) for item in vars(each).items()]
        for attribute, declared in inherited:
            if isinstance(declared, DeclaredMetric):
                metric = declared.make(declared.name, declared.help, declared.labels, registry=self._registry)
                for values in declared.at_zero:
                    metric.labels(*((values,) if isinstance(values, str) else values))
                setattr(self, attribute, metric)
        ProcessCollector(registry=self._registry)

    @classmethod
    def declared(
        cls,
    ) -> tuple[DeclaredMetric[Counter] | DeclaredMetric[Gauge] | DeclaredMetric[Histogram], ...]:
        """Return our own metrics (not those of the process) in their order, for the documentation."""
        return tuple(value for value in vars(cls).values() if isinstance(value, DeclaredMetric))

    def text(self) -> bytes:
        """Return everything in Prometheus' text form (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)
