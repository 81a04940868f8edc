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
from solstice_orchestrator.store.traced_runs import READ_STEPS, STEPS_PER_RUN, BegunStep, TracedRun
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
STEPS = [
    BegunStep("job-1", 1, 90.0, b"$ checkout\n"),  # by a clock that is behind
    BegunStep("job-1", 1, 105.0, b"$ unit tests\n"),
    BegunStep("job-1", 1, 109.0, b"$ the end of what the service db wrote\n"),
    BegunStep("job-1", 2, 112.5, b"$ checkout\n"),
    BegunStep("job-1", 2, 114.0, b"$ unit \xff tests\n"),
    BegunStep("job-1", 2, 130.0, b"$ report\n"),  # by a clock that is ahead
]
WHOLE = TracedRun(
    run=run_view(), request=REQUEST.encode(), jobs=[job_view()], attempts=[LOST, DONE], steps=STEPS
)


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
        ("step checkout", 103.0, 105.0),
        ("step unit tests", 105.0, 110.0),
        ("step checkout", 112.5, 114.0),
        ("step unit \ufffd tests", 114.0, 120.0),
        ("step report", 120.0, 120.0),
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


def test_the_last_step_ends_as_its_attempt_did_and_those_before_it_succeeded() -> None:
    steps = [span for span in spans() if span.type is SpanType.STEP]
    of_attempt = [span.span_id for span in spans() if span.type is SpanType.ATTEMPT]
    assert [span.parent_id for span in steps] == [of_attempt[0]] * 2 + [of_attempt[1]] * 3
    assert [span.failed for span in steps] == [False, True, False, False, False]
    assert steps[1].attributes == {
        "cicd.pipeline.task.name": "unit tests",
        "cicd.pipeline.task.run.id": "job-1/1/2",
        "cicd.pipeline.task.run.result": "error",
        "error.type": "lease_expired",
        "solstice.attempt": 1,
    }
    assert {span.attributes["cicd.pipeline.task.run.result"] for span in steps[2:]} == {"success"}


def test_an_attempt_that_was_lost_before_its_first_step_has_no_steps() -> None:
    found = spans(replace(WHOLE, steps=[step for step in STEPS if step.attempt == DONE.number]))
    (first, *_) = (span for span in found if span.type is SpanType.ATTEMPT)
    steps = [span for span in found if span.type is SpanType.STEP]
    assert steps
    assert first.span_id not in {span.parent_id for span in steps}


def test_a_failure_behind_the_steps_is_none_of_the_last_one() -> None:
    refused = DONE._replace(state=JobState.FAILED, reason=Reason.ARTIFACT_REFUSED)
    steps = [span for span in spans(replace(WHOLE, attempts=[LOST, refused])) if span.type is SpanType.STEP]
    assert not steps[-1].failed


def test_of_many_steps_the_last_one_that_is_traced_ends_where_the_next_begins() -> None:
    many = [BegunStep("job-1", 2, 112.0 + number / 100, b"$ more\n") for number in range(READ_STEPS)]
    failed = DONE._replace(state=JobState.FAILED, reason=Reason.STEP_FAILED)
    found = spans(replace(WHOLE, attempts=[LOST, failed], steps=many))
    steps = [span for span in found if span.type is SpanType.STEP]
    assert len(steps) == STEPS_PER_RUN
    assert (steps[-1].ended_at, steps[-1].failed) == (many[-1].at, False)


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
