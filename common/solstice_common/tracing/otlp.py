"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP.

The only module that imports OpenTelemetry's package, and only once spans are sent: without traces nothing loads it.

The protocol: opentelemetry.io/docs/specs/otlp (binary Protobuf; which answers may be tried again).
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import httpx2

from solstice_common import __version__
from solstice_common.addresses.http_client import http_client
from solstice_common.errors import ConfigurationError
from solstice_common.tracing.spans import AttributeValue, Span
from solstice_common.tracing.trace_settings import TraceSettings, read_headers

PATH: Final = "/v1/traces"
SEND_SECONDS: Final = 5.0
"""The longest that one export may take, from connecting to the end of the answer."""
ANSWER_BYTES: Final = 64 * 1024
"""More of an answer is not read."""
_LATER: Final = frozenset({429, 502, 503, 504})
"""The answers of a collector that may take the same spans later."""
_MESSAGES: Final = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
_FAILED: Final = 2
"""The status of a span whose work failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The collector took the spans, except `rejected` ones."""

    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRefused:
    """The collector will never take these spans."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPostponed:
    """The collector cannot take spans now."""

    detail: str


ExportResult = Exported | ExportRefused | ExportPostponed


class SpanExporter:
    """Sends spans of one service; opened with `open_exporter`."""

    def __init__(self, url: str, http: httpx2.AsyncClient, messages: ModuleType, service: str) -> None:
        self._url = url
        self._http = http
        self._messages: Any = messages
        self._service = service

    async def send(self, spans: Sequence[Span]) -> ExportResult:
        """Send the spans in one request; raises nothing for anything that the collector does."""
        try:
            body = self._encoded(spans)
        except ValueError as error:
            # A text that is no UTF-8, or a number that is too large.
            return ExportRefused(detail=f"cannot be encoded: {type(error).__name__}")
        try:
            # One limit for the whole exchange: a collector that answers byte by byte meets it too.
            return await asyncio.wait_for(self._post(body), SEND_SECONDS)
        except TimeoutError:
            return ExportPostponed(detail=f"no whole answer within {SEND_SECONDS:g} s")
        except httpx2.HTTPError as error:
            return ExportPostponed(detail=type(error).__name__)

    async def _post(self, body: bytes) -> ExportResult:
        async with self._http.stream("POST", self._url, content=body) as response:
            answer = b""
            async for piece in response.aiter_raw():
                answer += piece
                if len(answer) > ANSWER_BYTES:
                    break
        return self._judged(response.status_code, answer)

    def _judged(self, status: int, answer: bytes) -> ExportResult:
        if status in _LATER:
            return ExportPostponed(detail=f"HTTP {status}")
        if not httpx2.codes.is_success(status):
            # A redirect is none of the answers that the protocol knows.
            return ExportRefused(detail=f"HTTP {status}")
        try:
            partial = self._messages.ExportTraceServiceResponse.FromString(answer).partial_success
            return Exported(rejected=max(0, partial.rejected_spans))
        except Exception:  # noqa: BLE001  a 2xx with any body whatsoever: it has taken them
            return Exported()

    def _encoded(self, spans: Sequence[Span]) -> bytes:
        resource = {"service.name": self._service, "service.version": __version__}
        request = self._messages.ExportTraceServiceRequest()
        of_resource = request.resource_spans.add()
        _add_attributes(of_resource.resource.attributes, resource)
        scope = of_resource.scope_spans.add()
        scope.scope.name, scope.scope.version = "solstice-ci", __version__
        for span in spans:
            message = scope.spans.add()
            message.trace_id = bytes.fromhex(span.trace_id)
            message.span_id = bytes.fromhex(span.span_id)
            if span.parent_id is not None:
                message.parent_span_id = bytes.fromhex(span.parent_id)
            message.name = span.name
            message.kind = span.type.value.kind.value
            message.start_time_unix_nano = _nanoseconds(span.started_at)
            # The clocks of two machines may differ.
            message.end_time_unix_nano = _nanoseconds(max(span.started_at, span.ended_at))
            _add_attributes(message.attributes, span.attributes)
            if span.failed:
                message.status.code = _FAILED
        encoded: bytes = request.SerializeToString()
        return encoded


def _nanoseconds(seconds: float) -> int:
    # A number of today's seconds is exact to a fraction of a microsecond.
    return round(seconds * 1e6) * 1000


def _add_attributes(fields: Any, attributes: Mapping[str, AttributeValue]) -> None:
    for name, value in attributes.items():
        field = fields.add()
        field.key = name
        if isinstance(value, int):
            field.value.int_value = value
        else:
            field.value.string_value = value


@asynccontextmanager
async def open_exporter(settings: TraceSettings, *, service: str) -> AsyncIterator[SpanExporter | None]:
    """Open the exporter that the settings describe; None when nothing is traced.

    `service` is the name of this service, where the settings give none. Raises ConfigurationError where the extra
    `otel` is not installed.
    """
    endpoint = settings.otel_exporter_otlp_endpoint
    if not endpoint:
        yield None
        return
    try:
        messages = importlib.import_module(_MESSAGES)
    except ImportError:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the package for traces is missing: install it with"
            " pip install 'solstice-ci[otel]', or unset the variable"
        ) from None
    headers = {
        "content-type": "application/x-protobuf",
        "user-agent": f"solstice-ci/{__version__}",
        **read_headers(settings.otel_exporter_otlp_headers.get_secret_value()),
    }
    async with http_client(endpoint, timeout=SEND_SECONDS, follow_redirects=False, headers=headers) as http:
        yield SpanExporter(endpoint + PATH, http, messages, settings.otel_service_name or service)
