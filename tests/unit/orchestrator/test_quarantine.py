import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.jobs import JobState, Outcome, Reason
from solstice_orchestrator.quarantine import (
    COUNTED,
    FAILURES_IN_A_ROW,
    FIRST_SECONDS,
    LONGEST_SECONDS,
    SILENT,
    Record,
    after_end,
    quarantine_seconds,
    quarantined,
)

STATES = {
    Reason.COMPLETED: JobState.SUCCEEDED,
    Reason.STEP_FAILED: JobState.FAILED,
    Reason.JOB_TIMEOUT: JobState.TIMED_OUT,
    Reason.STEP_TIMEOUT: JobState.TIMED_OUT,
    Reason.CANCEL_REQUESTED: JobState.CANCELLED,
    Reason.RELEASED: JobState.WAITING,
}
"""Where the ends of attempts lead to; an infrastructure reason's outcome is ERRORED."""


def end(reason: Reason) -> Outcome:
    return Outcome(state=STATES.get(reason, JobState.ERRORED), reason=reason)


def after(*reasons: Reason, record: Record | None = None, now: float = 0.0) -> Record:
    current = record or Record()
    for reason in reasons:
        current = after_end(current, end(reason), now)
    return current


@pytest.mark.parametrize("reason", sorted(COUNTED))
def test_the_third_failure_in_a_row_begins_a_quarantine(reason: Reason) -> None:
    assert after(reason, reason) == Record(failures=2)
    assert after(reason, reason, reason, now=100.0) == Record(failures=3, quarantined_until=110.0)


def test_failures_of_several_kinds_make_one_row() -> None:
    assert after(*sorted(COUNTED)).quarantined_until is not None


@pytest.mark.parametrize(
    "reason", [Reason.COMPLETED, Reason.STEP_FAILED, Reason.JOB_TIMEOUT, Reason.STEP_TIMEOUT]
)
def test_a_job_that_ended_by_itself_proves_the_worker_able(reason: Reason) -> None:
    failure = Reason.MACHINE_FAILED
    assert after(failure, failure, reason, failure, failure) == Record(failures=2)


@pytest.mark.parametrize("reason", [*sorted(SILENT), Reason.CANCEL_REQUESTED])
def test_what_says_nothing_of_the_worker_changes_nothing(reason: Reason) -> None:
    failure = Reason.EXECUTOR_FAILED
    assert after(reason, reason, reason) == Record()
    assert after(failure, reason, failure, reason) == Record(failures=2)


def test_a_crowd_that_fails_together_is_one_failure_more_not_many() -> None:
    record = after(*[Reason.PROVISION_FAILED] * 50, now=5.0)
    assert record == Record(failures=FAILURES_IN_A_ROW, quarantined_until=5.0 + FIRST_SECONDS)


def test_each_failure_after_a_quarantine_doubles_the_next_up_to_an_hour() -> None:
    record, now, seconds = Record(), 0.0, []
    for _ in range(14):
        record = after_end(record, end(Reason.PROVISION_FAILED), now)
        if record.quarantined_until is not None:
            seconds.append(record.quarantined_until - now)
            now = record.quarantined_until
    assert seconds == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


def test_the_longest_quarantine_is_an_hour_however_many_failures() -> None:
    assert quarantine_seconds(100_000) == LONGEST_SECONDS


def test_a_success_during_a_quarantine_clears_the_count_and_not_the_time() -> None:
    record = after(*[Reason.EXECUTOR_FAILED] * 3, now=1.0)
    record = after_end(record, end(Reason.COMPLETED), 2.0)
    assert record == Record(failures=0, quarantined_until=11.0)
    assert [quarantined(record, now) for now in (10.9, 11.0)] == [True, False]


OWN_ENDS = frozenset({Reason.COMPLETED, Reason.STEP_FAILED, Reason.JOB_TIMEOUT, Reason.STEP_TIMEOUT})


@given(st.lists(st.tuples(st.sampled_from(sorted(COUNTED | STATES.keys() | SILENT)), st.floats(0, 4000))))
def test_every_quarantine_follows_three_failures_in_a_row_and_lasts_ten_seconds_to_an_hour(
    story: list[tuple[Reason, float]],
) -> None:
    record, now, in_a_row = Record(), 0.0, 0
    for reason, pause in story:
        now += pause
        was_quarantined = quarantined(record, now)
        record = after_end(record, end(reason), now)
        in_a_row = 0 if reason in OWN_ENDS else in_a_row + (reason in COUNTED)
        assert record.failures <= in_a_row
        if quarantined(record, now) and not was_quarantined:
            assert in_a_row >= FAILURES_IN_A_ROW
            assert record.quarantined_until is not None
            assert FIRST_SECONDS <= round(record.quarantined_until - now, 3) <= LONGEST_SECONDS


@given(st.integers(0, 200))
def test_a_longer_row_is_never_a_shorter_quarantine(failures: int) -> None:
    lengths = [quarantine_seconds(number) or 0.0 for number in (failures, failures + 1)]
    assert all(shorter <= longer for shorter, longer in itertools.pairwise(lengths))


def test_what_a_host_or_a_commit_causes_never_counts_against_the_worker() -> None:
    world = (Reason.CHECKOUT_FAILED, Reason.COMMIT_UNUSABLE, Reason.COMMIT_NOT_FOUND)
    assert after(*world * 6) == Record()
    assert after(Reason.MACHINE_FAILED, *world, Reason.MACHINE_FAILED) == Record(failures=2)
