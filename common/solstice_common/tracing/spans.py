"""The spans that the services make, each declared once with its attributes. Pure.

Names follow the semantic conventions of OpenTelemetry for CI/CD, messaging, HTTP and version control; what those lack
begins with `solstice.`. Attributes hold ids, names and numbers: never output, details of errors, or secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class SpanKind(IntEnum):
    """The role of a span, by the numbers of the OpenTelemetry protocol."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


@dataclass(frozen=True, slots=True)
class DeclaredSpan:
    """One kind of span, as the documentation lists it."""

    service: str
    name: str
    """Its name, with what varies in braces."""
    kind: SpanKind
    meaning: str
    attributes: tuple[str, ...]


_MESSAGING: Final = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.operation.type",
    "messaging.destination.name",
    "messaging.message.conversation_id",
    "messaging.message.body.size",
)
_VCS: Final = (
    "vcs.repository.url.full",
    "vcs.repository.name",
    "vcs.ref.head.name",
    "vcs.ref.head.revision",
    "vcs.change.id",
)
_TASK: Final = (
    "cicd.pipeline.task.name",
    "cicd.pipeline.task.run.id",
    "cicd.pipeline.task.run.result",
    "cicd.pipeline.task.run.url.full",
    "error.type",
)


class SpanType(Enum):
    """Every kind of span."""

    WEBHOOK = DeclaredSpan(
        "forge-integration",
        "POST {route}",
        SpanKind.SERVER,
        "A webhook, or a request of the API, until it was stored.",
        (
            "http.request.method",
            "http.route",
            "http.response.status_code",
            "solstice.source",
            "solstice.event",
            "solstice.delivery.id",
        ),
    )
    PUBLISH = DeclaredSpan(
        "forge-integration",
        "publish {exchange}:{routing key}",
        SpanKind.PRODUCER,
        "Its request, from the relay to the broker's confirm.",
        _MESSAGING,
    )
    PROCESS = DeclaredSpan(
        "orchestrator",
        "process {queue}",
        SpanKind.CONSUMER,
        "The request, from its intake until its jobs are planned.",
        (*_MESSAGING, "error.type"),
    )
    RUN = DeclaredSpan(
        "orchestrator",
        "RUN {repository}",
        SpanKind.SERVER,
        "The run, from its intake to the end of its last job.",
        (
            "cicd.pipeline.name",
            "cicd.pipeline.action.name",
            "cicd.pipeline.run.id",
            "cicd.pipeline.run.url.full",
            "cicd.pipeline.result",
            "error.type",
            *_VCS,
        ),
    )
    JOB = DeclaredSpan(
        "orchestrator",
        "{job}",
        SpanKind.INTERNAL,
        "A job, from its planning to its end.",
        (*_TASK, "solstice.label", "solstice.priority"),
    )
    WAIT = DeclaredSpan(
        "orchestrator",
        "wait",
        SpanKind.INTERNAL,
        "The time before an attempt, in which the job waited.",
        ("solstice.attempt",),
    )
    ATTEMPT = DeclaredSpan(
        "orchestrator",
        "attempt",
        SpanKind.INTERNAL,
        "An attempt at the job, from its claim to its end; `TRACEPARENT` in its environment names it.",
        (
            "solstice.attempt",
            "cicd.pipeline.task.run.result",
            "cicd.worker.id",
            "process.exit.code",
            "error.type",
        ),
    )
    STEP = DeclaredSpan(
        "orchestrator",
        "step {step}",
        SpanKind.INTERNAL,
        "A step of an attempt until the next begins, also its checkout; the first 100 of a run.",
        (
            "cicd.pipeline.task.name",
            "cicd.pipeline.task.run.id",
            "cicd.pipeline.task.run.result",
            "error.type",
            "solstice.attempt",
        ),
    )
    STATUS = DeclaredSpan(
        "forge-integration",
        "report status",
        SpanKind.CLIENT,
        "A call that shows a status at the forge.",
        ("http.request.method", "solstice.source", "solstice.state"),
    )


AttributeValue = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that has ended; times are in seconds since the epoch."""

    type: SpanType
    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    started_at: float
    ended_at: float
    attributes: Mapping[str, AttributeValue]
    failed: bool = False


def present(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Return the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
