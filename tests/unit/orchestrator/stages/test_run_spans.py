"""The spans of ended runs."""

from dataclasses import replace
from typing import Any

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_common.tracing.run_trace import attempt_traceparent, run_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.spans import Span, SpanType
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.stages.run_spans import RESULTS, RunSurroundings, attempt_outcome, run_spans
from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.traced_runs import TracedRun
from solstice_orchestrator.store.views import JobView, RunView
from tests.builders import SHA, job_request
from tests.span_table import type_of, undeclared

ALL = Sampler(ratio=1.0, follows_parent=True)
SURROUNDINGS = RunSurroundings(queue="solstice.jobs.v1", broker="rabbitmq", pages_url="https://ci.example")
REQUEST = job_request(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", change_number=17)


def run_view(**changes: Any) -> RunView:
    return RunView(
        **{
            "run_id": "run-1",
            "request_id": REQUEST.request_id,
            "state": RunState.SUCCEEDED,
            "detail": "",
            "source": "forgejo",
            "repo_url": REQUEST.repo_url,
            "repo_full_name": "lantern/harbour",
            "commit_sha": SHA,
            "ref": "refs/heads/main",
            "event": "push",
            "change_number": 17,
            "sender": "ada",
            "created_at": 100.0,
            "started_at": 103.0,
            "finished_at": 120.0,
            "rerun_of": None,
            **changes,
        }
    )


def job_view(**changes: Any) -> JobView:
    return JobView(
        **{
            "job_id": "job-1",
            "run_id": "run-1",
            "name": "build",
            "state": JobState.SUCCEEDED,
            "reason": Reason.COMPLETED,
            "detail": "a detail that may hold output",
            "runs_on": "linux",
            "needs": (),
            "priority": Priority.DEFAULT,
            "attempt": 2,
            "created_at": 102.0,
            "started_at": 103.0,
            "finished_at": 120.0,
            "retry_at": None,
            "exit_code": 0,
            "step": None,
            "worker_id": "w",
            **changes,
        }
    )


LOST = Attempt("job-1", 1, "w1", JobState.BACKOFF, Reason.LEASE_EXPIRED, 103.0, 110.0, None, None, "output")
DONE = Attempt("job-1", 2, "w2", JobState.SUCCEEDED, Reason.COMPLETED, 112.0, 120.0, 0, None, "")
WHOLE = TracedRun(run=run_view(), request=REQUEST.encode(), jobs=[job_view()], attempts=[LOST, DONE])


def spans(ended: TracedRun = WHOLE) -> list[Span]:
    return list(run_spans(ended, ALL, SURROUNDINGS))


def times(found: list[Span]) -> list[tuple[str, float, float]]:
    return [(span.name, span.started_at, span.ended_at) for span in found]


def test_a_run_holds_its_job_with_every_wait_and_attempt() -> None:
    assert times(spans()) == [
        ("process solstice.jobs.v1", 100.0, 102.0),
        ("RUN lantern/harbour", 100.0, 120.0),
        ("build", 102.0, 120.0),
        ("wait", 102.0, 103.0),
        ("attempt", 103.0, 110.0),
        ("wait", 110.0, 112.0),
        ("attempt", 112.0, 120.0),
    ]


def test_every_span_comes_behind_its_parent_and_the_first_continues_the_message() -> None:
    known = {"b7ad6b7169203331"}
    for span in spans():
        assert span.trace_id == "0af7651916cd43dd8448eb211c80319c"
        assert span.parent_id in known
        assert span.span_id not in known
        known.add(span.span_id)


def test_spans_have_the_names_that_jobs_and_statuses_were_told_before() -> None:
    found = {span.type: span for span in spans()}
    run, attempt = found[SpanType.RUN], found[SpanType.ATTEMPT]
    assert run_traceparent(REQUEST, "run-1", ALL) == f"00-{run.trace_id}-{run.span_id}-01"
    assert attempt_traceparent(REQUEST, "job-1", 2, ALL) == f"00-{run.trace_id}-{attempt.span_id}-01"


def test_the_same_run_has_the_same_spans_again() -> None:
    assert spans() == spans()


def test_a_run_without_a_traceparent_begins_its_own_trace() -> None:
    first = spans(replace(WHOLE, request=job_request().encode()))[0]
    assert first.parent_id is None


def test_every_span_is_declared() -> None:
    for span in spans():
        assert type_of(span.name, span.type.value.kind.value) is span.type
        assert not undeclared(span.type, span.attributes)


def test_nothing_that_may_hold_output_is_in_a_span() -> None:
    values = [value for span in spans() for value in (span.name, *span.attributes.values())]
    assert not [value for value in values if "output" in str(value)]


def test_attempts_say_what_became_of_them() -> None:
    lost, done = (span for span in spans() if span.type is SpanType.ATTEMPT)
    assert (lost.failed, lost.attributes) == (
        True,
        {
            "cicd.pipeline.task.run.result": "error",
            "error.type": "lease_expired",
            "solstice.attempt": 1,
            "cicd.worker.id": "w1",
        },
    )
    assert (done.failed, done.attributes) == (
        False,
        {
            "cicd.pipeline.task.run.result": "success",
            "solstice.attempt": 2,
            "cicd.worker.id": "w2",
            "process.exit.code": 0,
        },
    )


def test_a_run_says_what_it_built_and_where_it_is_shown() -> None:
    run = next(span for span in spans() if span.type is SpanType.RUN)
    assert run.attributes == {
        "cicd.pipeline.name": "lantern/harbour",
        "cicd.pipeline.action.name": "RUN",
        "cicd.pipeline.run.id": "run-1",
        "cicd.pipeline.run.url.full": "https://ci.example/runs/run-1",
        "cicd.pipeline.result": "success",
        "vcs.repository.url.full": REQUEST.repo_url,
        "vcs.repository.name": "lantern/harbour",
        "vcs.ref.head.name": "refs/heads/main",
        "vcs.ref.head.revision": SHA,
        "vcs.change.id": "17",
    }


def test_a_run_that_was_not_planned_failed_to_be_processed() -> None:
    ended = TracedRun(run=run_view(state=RunState.ERRORED), request=REQUEST.encode(), jobs=[], attempts=[])
    process, run = spans(ended)
    assert (process.failed, process.attributes["error.type"], process.ended_at) == (
        True,
        "not_planned",
        120.0,
    )
    assert (run.failed, run.attributes["cicd.pipeline.result"]) == (True, "error")


def test_a_skipped_job_has_no_attempts() -> None:
    skipped = job_view(state=JobState.SKIPPED, reason=Reason.NEEDS_FAILED, attempt=0)
    found = spans(replace(WHOLE, jobs=[skipped], attempts=[]))
    assert [span.type for span in found] == [SpanType.PROCESS, SpanType.RUN, SpanType.JOB]
    assert found[-1].attributes["cicd.pipeline.task.run.result"] == "skip"
    assert not found[-1].failed


def test_every_final_state_has_a_result() -> None:
    assert {state.value for state in FINAL} == set(RESULTS)


@pytest.mark.parametrize(
    ("state", "reason", "result", "error"),
    [
        (JobState.FAILED, Reason.STEP_FAILED, "failure", "step_failed"),
        (JobState.WAITING, Reason.RETRYING, "failure", "retrying"),
        (JobState.WAITING, Reason.RELEASED, "cancellation", None),
        (JobState.BACKOFF, Reason.CHECKOUT_FAILED, "error", "checkout_failed"),
        (JobState.TIMED_OUT, Reason.JOB_TIMEOUT, "timeout", "job_timeout"),
        (JobState.CANCELLED, Reason.SUPERSEDED, "cancellation", None),
    ],
)
def test_an_attempt_that_another_follows_has_a_result(
    state: JobState, reason: Reason, result: str, error: str | None
) -> None:
    assert attempt_outcome(state, reason) == {
        "cicd.pipeline.task.run.result": result,
        "error.type": error,
    }
