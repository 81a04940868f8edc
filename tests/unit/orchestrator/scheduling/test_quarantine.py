"""Failures in a row quarantine a worker; a proof of ability ends it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.order import ClaimExclusions
from solstice_orchestrator.scheduling.quarantine import (
    COUNTED_REASONS,
    FAILURES_IN_A_ROW,
    FIRST_SECONDS,
    LONGEST_SECONDS,
    MAX_CAUSES,
    OTHERS_FIRST_SECONDS,
    UNCOUNTED_REASONS,
    HealthRecord,
    QuarantineCause,
    after_end,
    claim_rounds,
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
"""The states after an attempt's end; an infrastructure reason's outcome is ERRORED."""


def end(reason: Reason) -> Outcome:
    return Outcome(state=STATES.get(reason, JobState.ERRORED), reason=reason)


def cause(name: object, repository: str = "river/heron", job_id: str = "") -> QuarantineCause:
    return QuarantineCause(repository, str(name), job_id or f"{repository}/{name}")


def after(*reasons: Reason, record: HealthRecord | None = None, now: float = 0.0) -> HealthRecord:
    """The record once attempts at different jobs have ended so."""
    current = record or HealthRecord()
    for number, reason in enumerate(reasons):
        current = after_end(current, end(reason), cause(number), now)
    return current


def reported(record: HealthRecord) -> tuple[int, float | None]:
    return record.failures, record.quarantined_until


@pytest.mark.parametrize("reason", sorted(COUNTED_REASONS))
def test_the_third_failure_in_a_row_begins_a_quarantine(reason: Reason) -> None:
    assert reported(after(reason, reason)) == (2, None)
    assert reported(after(reason, reason, reason, now=100.0)) == (3, 110.0)


def test_failures_of_several_kinds_make_one_row() -> None:
    assert after(*sorted(COUNTED_REASONS)).quarantined_until is not None


@pytest.mark.parametrize(
    "reason", [Reason.COMPLETED, Reason.STEP_FAILED, Reason.JOB_TIMEOUT, Reason.STEP_TIMEOUT]
)
def test_a_job_that_ended_by_itself_proves_the_worker_able(reason: Reason) -> None:
    failure = Reason.MACHINE_FAILED
    record = after(failure, failure, reason)
    assert record == HealthRecord()
    assert reported(after(failure, failure, record=record)) == (2, None)


@pytest.mark.parametrize("reason", [*sorted(UNCOUNTED_REASONS), Reason.CANCEL_REQUESTED])
def test_what_says_nothing_of_the_worker_changes_nothing(reason: Reason) -> None:
    failure = Reason.EXECUTOR_FAILED
    assert after(reason, reason, reason) == HealthRecord()
    assert reported(after(failure, reason, failure, reason)) == (2, None)


def test_a_crowd_that_fails_together_is_one_failure_more_not_many() -> None:
    record = after(*[Reason.PROVISION_FAILED] * 50, now=5.0)
    assert reported(record) == (FAILURES_IN_A_ROW, 5.0 + FIRST_SECONDS)


def test_each_failure_after_a_quarantine_doubles_the_next_up_to_an_hour() -> None:
    record, now, seconds = HealthRecord(), 0.0, []
    for number in range(14):
        record = after_end(record, end(Reason.PROVISION_FAILED), cause(number), now)
        if record.quarantined_until is not None:
            seconds.append(record.quarantined_until - now)
            now = record.quarantined_until
    assert seconds == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


def test_the_longest_quarantine_is_an_hour_however_many_failures() -> None:
    assert quarantine_seconds(100_000) == LONGEST_SECONDS


def test_a_success_during_a_quarantine_clears_the_count_and_not_the_time() -> None:
    record = after(*[Reason.EXECUTOR_FAILED] * 3, now=1.0)
    record = after_end(record, end(Reason.COMPLETED), cause("good"), 2.0)
    assert record == HealthRecord(failures=0, quarantined_until=11.0)
    assert [quarantined(record, now) for now in (10.9, 11.0)] == [True, False]


OWN_ENDS = frozenset({Reason.COMPLETED, Reason.STEP_FAILED, Reason.JOB_TIMEOUT, Reason.STEP_TIMEOUT})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(COUNTED_REASONS | STATES.keys() | UNCOUNTED_REASONS)),
            st.floats(0, 4000),
            st.integers(0, 5),
        )
    )
)
def test_every_quarantine_follows_three_failures_in_a_row_and_lasts_ten_seconds_to_an_hour(
    story: list[tuple[Reason, float, int]],
) -> None:
    record, now, in_a_row = HealthRecord(), 0.0, 0
    for reason, pause, number in story:
        now += pause
        was_quarantined = quarantined(record, now)
        record = after_end(record, end(reason), cause(number), now)
        in_a_row = 0 if reason in OWN_ENDS else in_a_row + (reason in COUNTED_REASONS)
        assert record.failures <= in_a_row
        assert (record.failures == 0) == (record.causes == ())
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
    assert after(*world * 6) == HealthRecord()
    assert reported(after(Reason.MACHINE_FAILED, *world, Reason.MACHINE_FAILED)) == (2, None)


MAY_BE_THE_JOB = sorted(COUNTED_REASONS - {Reason.MACHINE_FAILED})


@pytest.mark.parametrize("reason", MAY_BE_THE_JOB)
def test_a_job_that_breaks_its_executor_again_and_again_is_one_failure(reason: Reason) -> None:
    record = HealthRecord()
    for number in range(20):
        record = after_end(record, end(reason), cause("broken", job_id=f"push {number}"), float(number))
    assert record == HealthRecord(failures=1, causes=(cause("broken", job_id="push 19"),))


def test_jobs_of_one_name_in_several_repositories_are_several_causes() -> None:
    record = HealthRecord()
    for number in range(FAILURES_IN_A_ROW):
        record = after_end(record, end(Reason.EXECUTOR_FAILED), cause("build", f"river/{number}"), 0.0)
    assert reported(record) == (FAILURES_IN_A_ROW, FIRST_SECONDS)


def test_what_the_machine_itself_lacks_counts_each_time() -> None:
    record = HealthRecord()
    for _ in range(FAILURES_IN_A_ROW):
        record = after_end(record, end(Reason.MACHINE_FAILED), cause("one"), 0.0)
    assert reported(record) == (FAILURES_IN_A_ROW, FIRST_SECONDS)


def test_a_known_cause_begins_another_quarantine_and_no_longer_one() -> None:
    record = after(*[Reason.EXECUTOR_FAILED] * 3)
    for now in (10.0, 20.0, 30.0):
        record = after_end(record, end(Reason.EXECUTOR_FAILED), cause(0), now)
        assert reported(record) == (3, now + FIRST_SECONDS)
    record = after_end(record, end(Reason.EXECUTOR_FAILED), cause("other"), 40.0)
    assert reported(record) == (4, 40.0 + 2 * FIRST_SECONDS)


def test_causes_are_bounded_beyond_the_longest_quarantine() -> None:
    record, now = HealthRecord(), 0.0
    for number in range(3 * MAX_CAUSES):
        record = after_end(record, end(Reason.EXECUTOR_FAILED), cause(number), now)
        now = record.quarantined_until or now
    assert len(record.causes) == MAX_CAUSES
    assert quarantine_seconds(MAX_CAUSES) == LONGEST_SECONDS


def test_a_worker_that_was_not_quarantined_takes_the_next_job() -> None:
    failure = Reason.EXECUTOR_FAILED
    for record in (
        HealthRecord(),
        after(failure, failure),
        after(failure, failure, failure, Reason.COMPLETED),
    ):
        assert claim_rounds(record, 20.0) == (ClaimExclusions(),)


def test_after_a_quarantine_other_repositories_go_first_then_other_jobs_then_those_that_failed() -> None:
    record = HealthRecord()
    for number, repository in enumerate(("river/heron", "river/heron", "sea/otter")):
        record = after_end(record, end(Reason.EXECUTOR_FAILED), cause(number, repository), 0.0)
    others = ClaimExclusions(repositories=frozenset({"river/heron", "sea/otter"}))
    later = FIRST_SECONDS + OTHERS_FIRST_SECONDS
    assert claim_rounds(record, FIRST_SECONDS) == claim_rounds(record, later - 0.1) == (others,)
    assert claim_rounds(record, later) == (
        others,
        ClaimExclusions(jobs=frozenset({"river/heron/0", "river/heron/1", "sea/otter/2"})),
        ClaimExclusions(),
    )
    able = after_end(record, end(Reason.STEP_FAILED), cause("good"), FIRST_SECONDS)
    assert claim_rounds(able, FIRST_SECONDS) == (ClaimExclusions(),)
