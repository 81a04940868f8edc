"""The states of jobs and the moves between them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_orchestrator.domain.jobs import (
    INFRASTRUCTURE,
    TRANSITIONS,
    Reason,
    StepSpec,
    may_move,
    named_secrets,
    run_state,
)
from tests.builders import job

STATES = st.lists(st.sampled_from(JobState), max_size=6)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_final_state_leads_nowhere(state: JobState) -> None:
    assert not any(may_move(state, new) for new in JobState)


@pytest.mark.parametrize("state", sorted(set(JobState) - FINAL))
def test_every_other_state_leads_to_cancellation_and_to_an_end(state: JobState) -> None:
    assert may_move(state, JobState.CANCELLED)
    assert not may_move(state, state)


def test_only_what_waits_may_run() -> None:
    assert [old for old in JobState if may_move(old, JobState.RUNNING)] == [JobState.WAITING]


def test_every_state_can_be_reached_from_where_jobs_begin() -> None:
    reached = {JobState.BLOCKED, JobState.WAITING, JobState.APPROVAL}
    for _ in JobState:
        reached |= {new for old in reached for new in TRANSITIONS.get(old, ())}
    assert reached == set(JobState)


def test_what_the_job_did_itself_is_no_infrastructure() -> None:
    assert not INFRASTRUCTURE & {
        Reason.STEP_FAILED,
        Reason.JOB_TIMEOUT,
        Reason.STEP_TIMEOUT,
        Reason.COMPLETED,
    }


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), RunState.SKIPPED),
        (("waiting", "blocked"), RunState.WAITING),
        (("running", "blocked"), RunState.RUNNING),
        (("succeeded", "waiting"), RunState.RUNNING),
        (("backoff",), RunState.WAITING),
        (("succeeded", "succeeded"), RunState.SUCCEEDED),
        (("succeeded", "skipped", "failed"), RunState.FAILED),
        (("failed", "errored"), RunState.ERRORED),
        (("cancelled", "succeeded"), RunState.CANCELLED),
        (("timed_out", "cancelled"), RunState.TIMED_OUT),
        (("skipped",), RunState.SKIPPED),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else str(value),
)
def test_a_run_is_what_its_jobs_amount_to(states: tuple[str, ...], expected: RunState) -> None:
    assert run_state([JobState(state) for state in states]) is expected


@given(STATES)
def test_a_run_has_ended_exactly_when_all_its_jobs_have(states: list[JobState]) -> None:
    assert run_state(states).final == all(state.final for state in states)


@given(STATES)
def test_the_order_of_jobs_does_not_matter_to_the_run(states: list[JobState]) -> None:
    orders = itertools.islice(itertools.permutations(states), 20)
    assert len({run_state(order) for order in orders}) == 1


def test_a_job_names_its_own_secrets_and_those_of_every_step() -> None:
    steps = [StepSpec(name=name, run="true", secrets=(name,)) for name in ("build", "push")]
    assert named_secrets(job(*steps, secrets=("registry",))) == {"build", "push", "registry"}
    assert named_secrets(job("true")) == frozenset()
