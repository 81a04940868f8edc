"""Names the spans of runs, jobs and attempts, before they exist. Pure."""

from typing import Protocol

from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.trace_context import Trace, trace_of


class TraceableRequest(Protocol):
    """A request, as far as its trace depends on it."""

    @property
    def request_id(self) -> str: ...

    @property
    def traceparent(self) -> str | None: ...


def run_trace(request: TraceableRequest, sampler: Sampler) -> Trace:
    """Return the trace that the run of a request belongs to."""
    return trace_of(request.traceparent, request.request_id, sampler)


def run_span_id(trace: Trace, run_id: str) -> str:
    """Return the id of a run's span."""
    return trace.span_id("run", run_id)


def attempt_span_id(trace: Trace, job_id: str, number: int) -> str:
    """Return the id of an attempt's span."""
    return trace.span_id("attempt", job_id, number)


def run_traceparent(request: TraceableRequest, run_id: str, sampler: Sampler) -> str:
    """Return the context of a run, for those who hear of it."""
    trace = run_trace(request, sampler)
    return trace.traceparent(run_span_id(trace, run_id))


def attempt_traceparent(request: TraceableRequest, job_id: str, number: int, sampler: Sampler) -> str:
    """Return the context of an attempt, for the spans of its own steps."""
    trace = run_trace(request, sampler)
    return trace.traceparent(attempt_span_id(trace, job_id, number))
