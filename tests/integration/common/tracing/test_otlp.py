"""The exporter of spans and a real collector, which may misbehave in every way."""

import time
from dataclasses import replace

import pytest
from pydantic import SecretStr

from solstice_common.errors import ConfigurationError
from solstice_common.tracing import otlp
from solstice_common.tracing.otlp import Exported, ExportPostponed, ExportRefused, ExportResult, open_exporter
from solstice_common.tracing.spans import Span, SpanType
from solstice_common.tracing.trace_settings import TraceSettings
from tests.servers.otlp_collector import Behaviour, OtlpCollector, otlp_collector

SPAN = Span(
    type=SpanType.ATTEMPT,
    name="attempt",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    parent_id="00f067aa0ba902b7",
    started_at=1_800_000_000.25,
    ended_at=1_800_000_001.5,
    attributes={"solstice.attempt": 2, "error.type": "lease_expired"},
    failed=True,
)
SHORT_SECONDS = 0.5


def settings(collector: OtlpCollector) -> TraceSettings:
    return TraceSettings(
        otel_exporter_otlp_endpoint=collector.url,
        otel_exporter_otlp_headers=SecretStr("Authorization=Bearer%20invented-token"),
    )


async def sent(collector: OtlpCollector) -> ExportResult:
    async with open_exporter(settings(collector), service="orchestrator") as exporter:
        assert exporter is not None
        return await exporter.send([SPAN])


async def test_a_span_arrives_as_it_was() -> None:
    with otlp_collector() as collector:
        assert await sent(collector) == Exported()
    (received,) = collector.spans
    assert (received.service, received.name, received.kind, received.failed) == (
        "orchestrator",
        "attempt",
        1,
        True,
    )
    assert (received.trace_id, received.span_id, received.parent_id) == (
        SPAN.trace_id,
        SPAN.span_id,
        SPAN.parent_id,
    )
    assert (received.start, received.end) == (1_800_000_000_250_000_000, 1_800_000_001_500_000_000)
    assert received.attributes == SPAN.attributes
    (headers,) = collector.headers
    assert headers["authorization"] == "Bearer invented-token"
    assert headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (Behaviour.TAKE_PART, Exported(rejected=1)),
        (Behaviour.NONSENSE, Exported()),
        (Behaviour.ENDLESS, Exported()),
        (Behaviour.UNAVAILABLE, ExportPostponed(detail="HTTP 503")),
        (Behaviour.REFUSE, ExportRefused(detail="HTTP 400")),
        (Behaviour.REDIRECT, ExportRefused(detail="HTTP 307")),
        (Behaviour.HANG_UP, ExportPostponed(detail="RemoteProtocolError")),
    ],
    ids=lambda each: each.name if isinstance(each, Behaviour) else "",
)
async def test_every_answer_has_its_meaning(behaviour: Behaviour, expected: ExportResult) -> None:
    with otlp_collector() as collector:
        collector.behaviour = behaviour
        assert await sent(collector) == expected


@pytest.mark.parametrize("behaviour", [Behaviour.SILENT, Behaviour.TRICKLE])
async def test_a_collector_without_a_whole_answer_is_left_in_time(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "SEND_SECONDS", SHORT_SECONDS)
    with otlp_collector() as collector:
        collector.behaviour = behaviour
        began = time.monotonic()
        result = await sent(collector)
        assert time.monotonic() - began >= SHORT_SECONDS * 0.9
    assert isinstance(result, ExportPostponed)


@pytest.mark.parametrize(
    "wrong", [{"solstice.attempt": "\ud800"}, {"solstice.attempt": 2**64}], ids=["text", "number"]
)
async def test_what_cannot_be_encoded_is_refused(wrong: dict[str, str | int]) -> None:
    with otlp_collector() as collector:
        async with open_exporter(settings(collector), service="orchestrator") as exporter:
            assert exporter is not None
            refused = await exporter.send([replace(SPAN, attributes=wrong)])
    assert isinstance(refused, ExportRefused)
    assert collector.bodies == []


async def test_without_a_collector_spans_wait() -> None:
    with otlp_collector() as collector:
        pass
    assert await sent(collector) == ExportPostponed(detail="ConnectError")


async def test_nothing_is_opened_without_an_endpoint() -> None:
    async with open_exporter(
        TraceSettings(otel_exporter_otlp_endpoint=""), service="orchestrator"
    ) as exporter:
        assert exporter is None


async def test_a_missing_package_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_MESSAGES", "opentelemetry_that_is_not_installed")
    exporter = open_exporter(
        TraceSettings(otel_exporter_otlp_endpoint="http://127.0.0.1:4318"), service="orchestrator"
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'solstice-ci\[otel\]'"):
        await exporter.__aenter__()
