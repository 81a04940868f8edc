"""Every end is explained in at most 4 KB, with the words of jobs apart."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.reports.values import CaseCounts, JobReport, TestCaseResult, TestState
from solstice_orchestrator.store.views import JobView, RunView
from solstice_orchestrator.web.formats.explanations import (
    MAX_BYTES,
    NOTE,
    ExplanationFacts,
    advice,
    decisive_job,
    explained,
    lines_of,
)

RUN = RunView(
    run_id="3c9f7a52-2f4d-4b0e-8a39-0d5f8f1e2a77",
    request_id="q",
    state=RunState.FAILED,
    detail="",
    source="forgejo",
    repo_url="https://forge.example/harbour/lighthouse.git",
    repo_full_name="harbour/lighthouse",
    commit_sha="ab" * 20,
    ref="refs/heads/main",
    event="push",
    change_number=None,
    sender="mira",
    created_at=0.0,
    started_at=0.0,
    finished_at=9.0,
    rerun_of=None,
)
JOB = JobView(
    job_id="d4c3b2a1-0f9e-4d8c-b7a6-9f8e7d6c5b4a",
    run_id=RUN.run_id,
    name="test",
    state=JobState.FAILED,
    reason=Reason.STEP_FAILED,
    detail="the step 'unit tests' ended with exit code 1",
    runs_on="linux",
    needs=(),
    priority=Priority.DEFAULT,
    attempt=1,
    created_at=0.0,
    started_at=0.0,
    finished_at=9.0,
    retry_at=None,
    exit_code=1,
    step="unit tests",
    worker_id="w",
)
ENDED = {RunState.ERRORED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED, RunState.SKIPPED}


def report_of(*texts: str) -> JobReport:
    failed = [
        TestCaseResult(
            name=text[:500],
            class_name=text[:500],
            suite=text[:500],
            state=TestState.FAILED,
            message=text[:2000],
            file=text[:500],
            line=7,
        )
        for text in texts
    ]
    return JobReport(counts=CaseCounts(failed=len(failed)), failed=tuple(failed))


def test_a_failed_job_is_explained_by_its_step_its_tests_and_its_last_lines() -> None:
    facts = ExplanationFacts(
        run=RUN, job=JOB, jobs=[JOB], report=report_of("bad"), log=["one", "\x1b[31mtwo\u202e"]
    )
    found = explained(facts)
    assert (found["state"], found["reason"], found["exit_code"]) == ("failed", "step_failed", 1)
    assert "failed tests" in found["what_to_do"]
    words = found["untrusted"]
    assert (words["note"], words["step"], words["detail"]) == (NOTE, "unit tests", JOB.detail)
    assert words["failed_tests"] == [{"name": "bad", "message": "bad", "file": "bad", "line": 7}]
    assert words["log"] == ["one", "\\x1b[31mtwo\\u202e"]


TEXTS = st.text(st.sampled_from('ab"\\\n\x1b\u202e\U0001f600é\ud800\0'), max_size=50)


@settings(max_examples=40)
@given(st.lists(TEXTS, max_size=12), st.lists(TEXTS, max_size=12), TEXTS, st.integers(1, 90))
def test_an_explanation_of_any_output_fits_and_is_text(
    log: list[str], failed: list[str], detail: str, times: int
) -> None:
    job = replace(JOB, detail=detail * times, step=detail * times)
    run = replace(RUN, detail=detail * times, repo_full_name=detail * times or "a/b")
    facts = ExplanationFacts(
        run=run,
        job=job,
        jobs=[replace(job, job_id=str(number)) for number in range(20)],
        report=report_of(*(each * times for each in failed)),
        log=[each * times for each in log],
    )
    for each in (facts, replace(facts, job=None)):
        found = explained(each)
        encoded = orjson.dumps(found)
        assert len(encoded) <= MAX_BYTES
        for name in ("run_id", "commit_sha", "run_state", "state", "what_to_do"):
            assert found[name]
        assert found["untrusted"]["note"] == NOTE
        shown = encoded.decode()
        assert "\\u001b" not in shown
        assert "\u202e" not in shown


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_an_end_has_advice(reason: Reason) -> None:
    on_the_way = {
        *(
            Reason.PLANNED,
            Reason.NEEDS_MET,
            Reason.APPROVED,
            Reason.CLAIMED,
            Reason.BACKOFF_OVER,
            Reason.RELEASED,
        ),
        *(Reason.RETRYING, Reason.CONCURRENCY_GROUP, Reason.COMPLETED),
    }
    assert (advice(JobState.FAILED, reason) == advice(JobState.FAILED, None)) is (reason in on_the_way)


def test_every_state_has_advice() -> None:
    unexplained = {state for state in (*JobState, *RunState) if "Read the detail" in advice(state, None)}
    assert unexplained == ENDED


def test_a_run_without_jobs_is_explained_by_its_detail() -> None:
    run = replace(RUN, state=RunState.ERRORED, detail="workflow.kdl: line 3, column 5: 'stpe' is not known")
    found = explained(ExplanationFacts(run=run, job=None))
    assert (found["state"], found["untrusted"]["detail"]) == ("errored", run.detail)
    assert "job" not in found


def test_the_worst_job_stands_for_its_run() -> None:
    states = (JobState.SUCCEEDED, JobState.SKIPPED, JobState.FAILED, JobState.RUNNING, JobState.ERRORED)
    jobs = [replace(JOB, job_id=state.value, state=state) for state in states]
    assert decisive_job(jobs) is jobs[-1]
    assert decisive_job(jobs[:2]) is jobs[1]
    assert decisive_job([]) is None


def test_only_lines_with_words_are_shown() -> None:
    assert lines_of("a\n\n  \nb\r\n") == ["a", "b"]
