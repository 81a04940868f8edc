"""States and schedule words on the wire and in stores are never renamed."""

import pytest

from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import FINAL, JobState, RunState

ENDED = ["succeeded", "failed", "errored", "cancelled", "timed_out", "skipped"]
OPEN = ["blocked", "waiting", "backoff", "approval", "running"]


@pytest.mark.parametrize("word", [*OPEN, *ENDED])
def test_job_is_final_once_it_has_ended(word: str) -> None:
    state = JobState(word)
    assert state.name.lower() == word
    assert state.final is (word in ENDED)


def test_job_has_started_unless_it_waits_or_was_skipped() -> None:
    never = {state.value for state in JobState if not state.started}
    assert never == {"blocked", "waiting", "backoff", "approval", "skipped"}


@pytest.mark.parametrize("word", ["delayed", "planning", "waiting", "running", *ENDED])
def test_run_is_final_once_it_has_ended(word: str) -> None:
    state = RunState(word)
    assert state.name.lower() == word
    assert state.final is (word in ENDED)


def test_run_ends_in_the_state_of_the_same_name() -> None:
    assert sorted(FINAL) == sorted(ENDED)
    assert {state.value for state in JobState} == {*OPEN, *ENDED}


def test_schedule_says_what_becomes_of_missed_and_overlapping_ticks() -> None:
    assert {Missed("once"): "ONCE", Missed("skip"): "SKIP"} == {each: each.name for each in Missed}
    assert {Overlap("queue"): "QUEUE", Overlap("skip"): "SKIP"} == {each: each.name for each in Overlap}
