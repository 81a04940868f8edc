"""What the metrics of both services share: text form and list for the documentation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_1_0_0


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """One metric as the documentation lists it."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def declared_in(values: Iterable[object]) -> tuple[DeclaredMetric, ...]:
    """The metrics among `values`, in their order."""
    return tuple(
        DeclaredMetric(
            metric._name + ("_total" if metric._type == "counter" else ""),  # noqa: SLF001  the library has no public way
            metric._type,  # noqa: SLF001
            tuple(metric._labelnames),  # noqa: SLF001
            metric._documentation,  # noqa: SLF001
        )
        for metric in values
        if isinstance(metric, Counter | Gauge | Histogram)
    )
