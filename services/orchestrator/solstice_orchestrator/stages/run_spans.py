"""Makes the spans of an ended run from what the store knows of it. Pure.

The run's span holds those of its jobs; a job's holds its attempts, and the waits before them; an attempt's its steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState, RunState
from solstice_common.tracing.run_trace import attempt_span_id, run_span_id, run_trace
from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.spans import AttributeValue, Span, SpanType, present
from solstice_common.tracing.trace_context import Trace
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.log_marks import END_OF_SERVICE, STEP
from solstice_orchestrator.domain.statuses import StatusSubject, read_subject
from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.traced_runs import STEPS_PER_RUN, BegunStep, TracedRun
from solstice_orchestrator.store.views import JobView, RunView

RESULTS: Final[Mapping[str, str]] = {
    JobState.SUCCEEDED: "success",
    JobState.FAILED: "failure",
    JobState.ERRORED: "error",
    JobState.TIMED_OUT: "timeout",
    JobState.CANCELLED: "cancellation",
    JobState.SKIPPED: "skip",
}
"""The results of the conventions for CI/CD, by our final states."""
_FAILURES: Final = frozenset({"failure", "error", "timeout"})
_SUCCEEDED: Final[dict[str, AttributeValue | None]] = {
    "cicd.pipeline.task.run.result": "success",
    "error.type": None,
}
_AFTER_STEPS: Final = frozenset({Reason.ARTIFACT_REFUSED, Reason.ARTIFACT_NOT_STORED})
"""Failures behind the last step, which succeeded."""


class RunSurroundings(NamedTuple):
    """What spans say of the surroundings of a run."""

    queue: str
    broker: str
    """Its kind."""
    pages_url: str | None
    """Where readers find the pages, without a trailing slash."""


def run_spans(ended: TracedRun, sampler: Sampler, surroundings: RunSurroundings) -> Sequence[Span]:
    """Return all spans of a run, each behind its parent."""
    subject = read_subject(ended.request)
    trace = run_trace(subject, sampler)
    attempts: dict[str, list[Attempt]] = {}
    for attempt in ended.attempts:
        attempts.setdefault(attempt.job_id, []).append(attempt)
    steps: dict[tuple[str, int], list[BegunStep]] = {}
    for step in ended.steps:
        if not step.mark.startswith(END_OF_SERVICE):
            steps.setdefault((step.job_id, step.attempt), []).append(step)
    run_id = run_span_id(trace, ended.run.run_id)
    process = _process(ended, subject, trace, surroundings)
    spans = [process, _run(ended.run, subject, trace, parent_id=process.span_id, surroundings=surroundings)]
    for job in ended.jobs:
        spans += _job_spans(
            job, attempts.get(job.job_id, []), trace, parent_id=run_id, surroundings=surroundings
        )
    in_order = (
        span
        for attempt in ended.attempts
        for span in _step_spans(attempt, steps.get((attempt.job_id, attempt.number), []), trace)
    )
    # The step behind them says when the last one ended.
    return [*spans, *islice(in_order, STEPS_PER_RUN)]


def _process(ended: TracedRun, subject: StatusSubject, trace: Trace, surroundings: RunSurroundings) -> Span:
    run = ended.run
    planned_at = min((job.created_at for job in ended.jobs), default=run.finished_at or run.created_at)
    not_planned = not ended.jobs and run.state is RunState.ERRORED
    return Span(
        type=SpanType.PROCESS,
        name=f"process {surroundings.queue}",
        trace_id=trace.trace_id,
        span_id=trace.span_id("process", run.run_id),
        parent_id=trace.parent_id,
        started_at=run.created_at,
        ended_at=planned_at,
        attributes=present(
            {
                "messaging.system": surroundings.broker,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": surroundings.queue,
                "messaging.message.conversation_id": subject.request_id,
                "messaging.message.body.size": len(ended.request),
                "error.type": "not_planned" if not_planned else None,
            }
        ),
        failed=not_planned,
    )


def _run(
    run: RunView, subject: StatusSubject, trace: Trace, *, parent_id: str, surroundings: RunSurroundings
) -> Span:
    result = RESULTS[run.state.value]
    name = run.repo_full_name or run.repo_url
    return Span(
        type=SpanType.RUN,
        name=f"RUN {name}",
        trace_id=trace.trace_id,
        span_id=run_span_id(trace, run.run_id),
        parent_id=parent_id,
        started_at=run.created_at,
        ended_at=run.finished_at or run.created_at,
        attributes=present(
            {
                "cicd.pipeline.name": name,
                "cicd.pipeline.action.name": "RUN",
                "cicd.pipeline.run.id": run.run_id,
                "cicd.pipeline.run.url.full": surroundings.pages_url
                and f"{surroundings.pages_url}/runs/{run.run_id}",
                "cicd.pipeline.result": result,
                "error.type": run.state.value if result in _FAILURES else None,
                "vcs.repository.url.full": subject.repo_url,
                "vcs.repository.name": run.repo_full_name,
                "vcs.ref.head.name": run.ref,
                "vcs.ref.head.revision": run.commit_sha,
                "vcs.change.id": None if run.change_number is None else str(run.change_number),
            }
        ),
        failed=result in _FAILURES,
    )


def _job_spans(
    job: JobView, attempts: Sequence[Attempt], trace: Trace, *, parent_id: str, surroundings: RunSurroundings
) -> Iterator[Span]:
    result = RESULTS[job.state.value]
    span = Span(
        type=SpanType.JOB,
        name=job.name,
        trace_id=trace.trace_id,
        span_id=trace.span_id("job", job.job_id),
        parent_id=parent_id,
        started_at=job.created_at,
        ended_at=job.finished_at or job.created_at,
        attributes=present(
            {
                "cicd.pipeline.task.name": job.name,
                "cicd.pipeline.task.run.id": job.job_id,
                "cicd.pipeline.task.run.result": result,
                "cicd.pipeline.task.run.url.full": surroundings.pages_url
                and f"{surroundings.pages_url}/jobs/{job.job_id}",
                "error.type": job.reason.value if result in _FAILURES else None,
                "solstice.label": job.runs_on,
                "solstice.priority": job.priority.value,
            }
        ),
        failed=result in _FAILURES,
    )
    yield span
    waits_since = job.created_at
    for attempt in attempts:
        yield Span(
            type=SpanType.WAIT,
            name="wait",
            trace_id=trace.trace_id,
            span_id=trace.span_id("wait", job.job_id, attempt.number),
            parent_id=span.span_id,
            started_at=waits_since,
            ended_at=attempt.started_at,
            attributes={"solstice.attempt": attempt.number},
        )
        yield _attempt(attempt, trace, parent_id=span.span_id)
        waits_since = attempt.finished_at


def _attempt(attempt: Attempt, trace: Trace, *, parent_id: str) -> Span:
    outcome = attempt_outcome(attempt.state, attempt.reason)
    return Span(
        type=SpanType.ATTEMPT,
        name="attempt",
        trace_id=trace.trace_id,
        span_id=attempt_span_id(trace, attempt.job_id, attempt.number),
        parent_id=parent_id,
        started_at=attempt.started_at,
        ended_at=attempt.finished_at,
        attributes=present(
            outcome
            | {
                "solstice.attempt": attempt.number,
                "cicd.worker.id": attempt.worker_id,
                "process.exit.code": attempt.exit_code,
            }
        ),
        failed=outcome["error.type"] is not None,
    )


def _step_spans(attempt: Attempt, steps: Sequence[BegunStep], trace: Trace) -> Iterator[Span]:
    """Yield the steps of an attempt, each until the next one begins."""
    # The worker's clock may differ from the store's, which the attempt's times are of.
    begun = [min(max(step.at, attempt.started_at), attempt.finished_at) for step in steps]
    of_attempt = (
        _SUCCEEDED if attempt.reason in _AFTER_STEPS else attempt_outcome(attempt.state, attempt.reason)
    )
    # None without steps: its worker died before the first one.
    periods = pairwise([*begun, attempt.finished_at])
    for number, (step, (started_at, ended_at)) in enumerate(zip(steps, periods, strict=True), start=1):
        name = step.mark[len(STEP) :].decode(errors="replace").rstrip("\n")
        # Steps follow each other while they succeed: the last one ended as the attempt did.
        outcome = of_attempt if number == len(steps) else _SUCCEEDED
        yield Span(
            type=SpanType.STEP,
            name=f"step {name}",
            trace_id=trace.trace_id,
            span_id=trace.span_id("step", attempt.job_id, attempt.number, number),
            parent_id=attempt_span_id(trace, attempt.job_id, attempt.number),
            started_at=started_at,
            ended_at=max(started_at, ended_at),
            attributes=present(
                outcome
                | {
                    "cicd.pipeline.task.name": name,
                    "cicd.pipeline.task.run.id": f"{attempt.job_id}/{attempt.number}/{number}",
                    "solstice.attempt": attempt.number,
                }
            ),
            failed=outcome["error.type"] is not None,
        )


def attempt_outcome(state: JobState, reason: Reason) -> dict[str, AttributeValue | None]:
    """Return the result of an attempt, and the class of its error.

    An attempt that is followed by another one has no final state: the infrastructure failed, or its author retries it.
    """
    result = RESULTS.get(state.value)
    if result is None:
        result = {Reason.RETRYING: "failure", Reason.RELEASED: "cancellation"}.get(reason, "error")
    return {
        "cicd.pipeline.task.run.result": result,
        "error.type": reason.value if result in _FAILURES else None,
    }
