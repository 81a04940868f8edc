"""Verdicts of supervisors become outcomes; a forged one never is an infrastructure failure."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Outcome, Reason, StepSpec
from solstice_orchestrator.worker.executors.verdict import (
    CANCELLED,
    VANISHED,
    SupervisorVerdict,
    read_verdict,
    silent,
    to_outcome,
)
from tests.builders import job

SPEC = job("make", StepSpec(name="slow", run="sleep 9", timeout_seconds=2.5), timeout_seconds=60.0)

OUTCOMES = {
    "completed": (
        b'{"event":"end","how":"completed"}',
        (JobState.SUCCEEDED, Reason.COMPLETED, 0, None, ""),
    ),
    "exit code": (
        b'{"event":"end","how":"failed","step":0,"status":3}',
        (JobState.FAILED, Reason.STEP_FAILED, 3, "step 1", "the step 'step 1' ended with exit code 3"),
    ),
    "exit code 255": (
        b'{"event":"end","how":"failed","step":0,"status":255}',
        (JobState.FAILED, Reason.STEP_FAILED, 255, "step 1", "the step 'step 1' ended with exit code 255"),
    ),
    "signal": (
        b'{"event":"end","how":"failed","step":1,"status":-9}',
        (JobState.FAILED, Reason.STEP_FAILED, 137, "slow", "the step 'slow' was ended by SIGKILL"),
    ),
    "signal without a name": (
        b'{"event":"end","how":"failed","step":1,"status":-40}',
        (JobState.FAILED, Reason.STEP_FAILED, 168, "slow", "the step 'slow' was ended by signal 40"),
    ),
    "step timeout": (
        b'{"event":"end","how":"timed_out","scope":"step","step":1}',
        (JobState.TIMED_OUT, Reason.STEP_TIMEOUT, None, "slow", "the step 'slow' ran longer than 2.5 s"),
    ),
    "job timeout": (
        b'{"event":"end","how":"timed_out","scope":"job","step":0}',
        (JobState.TIMED_OUT, Reason.JOB_TIMEOUT, None, "step 1", "the job ran longer than 60 s"),
    ),
    "unstartable": (
        b'{"event":"end","how":"unstartable","step":0,"detail":"no memory"}',
        (
            JobState.FAILED,
            Reason.STEP_FAILED,
            None,
            "step 1",
            "the step 'step 1' could not be started: no memory",
        ),
    ),
    "vanished": (
        b"",
        (
            JobState.FAILED,
            Reason.STEP_FAILED,
            None,
            None,
            "the supervisor of the job's processes was killed: by the job, or for lack of memory",
        ),
    ),
}


@pytest.mark.parametrize(("words", "expected"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_outcomes(words: bytes, expected: tuple[object, ...]) -> None:
    outcome = to_outcome(read_verdict(words), SPEC, requested=None)
    assert (outcome.state, outcome.reason, outcome.exit_code, outcome.step, outcome.detail) == expected


@pytest.mark.parametrize("how", ["stopped", "vanished"])
@pytest.mark.parametrize("requested_end", [CANCELLED, silent(60)], ids=["cancelled", "silent"])
def test_who_was_asked_to_end_ends_for_that_reason(how: str, requested_end: Outcome) -> None:
    verdict = read_verdict(f'{{"event":"end","how":"{how}"}}'.encode())
    assert to_outcome(verdict, SPEC, requested=requested_end) == requested_end


@pytest.mark.parametrize("status", [*range(1, 256), *range(-64, 0)])
def test_any_end_of_a_step_is_its_own_failure(status: int) -> None:
    outcome = to_outcome(SupervisorVerdict(how="failed", step=0, status=status), SPEC, requested=None)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    assert outcome.exit_code == (status if status > 0 else 128 - status)


@pytest.mark.parametrize("status", [1, 137, 255])
def test_a_step_that_is_isolated_fails_by_its_exit_code(status: int) -> None:
    verdict = SupervisorVerdict(how="failed", step=0, status=status)
    assert to_outcome(verdict, SPEC, requested=None, isolated=True).reason is Reason.STEP_FAILED


def test_a_signal_is_the_worlds_failure_where_the_step_is_isolated_from_what_it_ended() -> None:
    verdict = SupervisorVerdict(how="failed", step=1, status=-9)
    outcome = to_outcome(verdict, SPEC, requested=None, isolated=True)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.EXECUTOR_FAILED)
    assert outcome.detail == "the process that waits for the step 'slow' was ended by SIGKILL"
    # Of the process that starts a container or VM, its facts say more.
    unbegun = to_outcome(replace(verdict, step=None), SPEC, requested=None, isolated=True)
    assert (unbegun.state, unbegun.exit_code) == (JobState.FAILED, 137)


def test_who_ended_before_the_stop_reached_it_keeps_its_end() -> None:
    assert (
        to_outcome(SupervisorVerdict(how="completed"), SPEC, requested=CANCELLED).state is JobState.SUCCEEDED
    )


def test_an_unrequested_stop_is_no_cancellation() -> None:
    assert to_outcome(SupervisorVerdict(how="stopped"), SPEC, requested=None).state is JobState.FAILED


@pytest.mark.parametrize(
    "words",
    [
        b"[1]",
        b"nonsense",
        b"[" * 100_000,
        b'{"event":"end"}',
        b'{"event":"end","how":"provision_failed"}',
        b'{"event":"end","how":["completed"]}',
        b'{"event":"end","how":"failed","status":"x"}',
        b'{"event":"end","how":"failed","step":1e999}',
        b"\xff\xfe",
    ],
)
def test_words_that_are_no_verdict_count_as_none(words: bytes) -> None:
    assert read_verdict(words) is VANISHED


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "event": st.just("end") | st.text(),
            "how": st.sampled_from(["completed", "failed", "timed_out", "stopped", "unstartable"])
            | st.text(),
            "step": st.none() | st.integers() | st.text(),
            "status": st.integers() | st.floats() | st.none(),
            "scope": st.sampled_from(["job", "step"]) | st.integers(),
            "detail": st.text() | st.integers(),
        },
    ),
    st.sampled_from([None, CANCELLED, silent(60)]),
)
def test_no_words_yield_an_infrastructure_reason(
    words: dict[str, object], requested_end: Outcome | None
) -> None:
    outcome = to_outcome(read_verdict(json.dumps(words).encode()), SPEC, requested=requested_end)
    assert outcome.reason not in INFRASTRUCTURE
    assert outcome.state.final
