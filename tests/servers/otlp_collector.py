"""An OpenTelemetry collector over real HTTP, which misbehaves as a test says.

with otlp_collector() as collector:
    collector.behaviour = Behaviour.UNAVAILABLE      # from now on
    ... collector.url, collector.spans, collector.orphans()
"""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Behaviour(Enum):
    """What the collector does with a request."""

    TAKE = auto()
    TAKE_PART = auto()
    """Takes all, and says that it rejected one span."""
    NONSENSE = auto()
    """Takes all, and answers with what is no message."""
    UNAVAILABLE = auto()
    REFUSE = auto()
    REDIRECT = auto()
    SILENT = auto()
    """Never answers."""
    TRICKLE = auto()
    """Answers byte by byte, without end."""
    ENDLESS = auto()
    """Answers with more than a client should read."""
    HANG_UP = auto()


_STATUSES = {Behaviour.UNAVAILABLE: 503, Behaviour.REFUSE: 400, Behaviour.REDIRECT: 307}


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    """A span as the collector understood it."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    start: int
    end: int
    attributes: dict[str, str | int]
    failed: bool


@dataclass(kw_only=True)
class OtlpCollector:
    """A running collector."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    """Each once: a client that did not get the answer in time sends the same span again."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of every request."""
    bodies: list[bytes] = field(default_factory=list)
    """Of those that it took."""
    behaviour: Behaviour = Behaviour.TAKE
    ending: threading.Event = field(default_factory=threading.Event)
    _known: dict[str, ReceivedSpan] = field(default_factory=dict)

    def orphans(self) -> list[ReceivedSpan]:
        """The spans whose parent has not come."""
        known = {(span.trace_id, span.span_id) for span in self.spans}
        return [
            span for span in self.spans if span.parent_id and (span.trace_id, span.parent_id) not in known
        ]

    def repeated(self) -> dict[tuple[str, str], int]:
        """The spans that came more than once, and not the same."""
        counts = Counter((span.trace_id, span.span_id) for span in self.spans)
        return {span: count for span, count in counts.items() if count > 1}

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.bodies.append(body)
        for of_resource in request.resource_spans:
            service = str(_values(of_resource.resource.attributes)["service.name"])
            for scope in of_resource.scope_spans:
                received = [_received(service, span) for span in scope.spans]
                self.spans += [span for span in received if self._known.get(span.span_id) != span]
                self._known |= {span.span_id: span for span in received}


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        failed=span.status.code == 2,
    )


def _values(attributes: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    collector: OtlpCollector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        collector, behaviour = self.collector, self.collector.behaviour
        collector.headers.append({name.lower(): value for name, value in self.headers.items()})
        if behaviour is Behaviour.HANG_UP:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif behaviour is Behaviour.SILENT:
            self.close_connection = True
            collector.ending.wait()
        elif behaviour is Behaviour.TRICKLE:
            self._answer(200, length=10_000_000)
            while not collector.ending.wait(0.01):
                self.wfile.write(b"x")
        elif behaviour is Behaviour.ENDLESS:
            self._answer(200, length=10**12)
            while not collector.ending.is_set():
                self.wfile.write(b"x" * 65536)
        elif behaviour in _STATUSES:
            self._answer(_STATUSES[behaviour], length=0)
        else:
            collector.take(body)
            answer = ExportTraceServiceResponse()
            if behaviour is Behaviour.TAKE_PART:
                answer.partial_success.rejected_spans = 1
            encoded = b"\xff\xff" if behaviour is Behaviour.NONSENSE else answer.SerializeToString()
            self._answer(200, length=len(encoded))
            self.wfile.write(encoded)

    def _answer(self, status: int, *, length: int) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(length))
        if status == 307:
            self.send_header("location", "http://192.0.2.1/v1/traces")
        self.end_headers()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Print nothing."""


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """A running collector; leaving ends it with all its connections."""

    class Handler(_Handler):
        # An idle connection of a client must not keep its thread without end.
        timeout = 30

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = OtlpCollector(url=f"http://127.0.0.1:{server.server_address[1]}")
        Handler.collector = collector
        server.daemon_threads = True
        server.block_on_close = False
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield collector
        finally:
            collector.ending.set()
            server.shutdown()
            serving.join()
