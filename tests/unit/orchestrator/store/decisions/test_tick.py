"""The result of a due tick."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1, Priority
from solstice_common.messages.schedules import Overlap
from solstice_orchestrator.schedules.ticks import (
    ON_TIME_SECONDS,
    RETRY_BASE_SECONDS,
    TickReason,
    TickState,
)
from solstice_orchestrator.store.decisions.schedule import added, by_hand
from solstice_orchestrator.store.decisions.tick import (
    claimed,
    fired,
    is_claimed,
    not_fired,
    released,
    request_of,
    request_or_tick,
)
from solstice_orchestrator.store.records.schedule_rows import Schedule, Tick
from solstice_orchestrator.store.schedule_store import TickTask
from tests.builders import moment
from tests.schedules import COMMIT, spec

NOW = 1_800_000_000.0
HOURLY = added(moment(NOW), spec(priority=Priority.HIGH, runs_on="illumos"), "mira").schedule
DUE = by_hand(moment(NOW), HOURLY, None).new[0]._replace(by_hand=False, reason=TickReason.ON_TIME)
CLAIMED = DUE._replace(attempt=1, lease_until=NOW + 60, worker_id="w")


def task(attempt: int = 1) -> TickTask:
    return TickTask(
        tick_id=DUE.tick_id,
        attempt=attempt,
        schedule_id=HOURLY.schedule_id,
        schedule=HOURLY.name,
        repo_url=HOURLY.repo_url,
        ref=HOURLY.ref,
        tick_at=NOW,
        by_hand=False,
    )


def claim(schedule: Schedule, tick: Tick, *busy: str) -> Tick:
    return claimed(moment(NOW, lease_seconds=60.0), "w", schedule, tick, dict.fromkeys(busy, "run-9"))


def test_a_claimed_tick_is_leased_to_its_worker_as_a_new_attempt() -> None:
    assert claim(HOURLY, DUE) == CLAIMED


def test_a_tick_is_skipped_while_a_run_of_its_schedule_has_not_ended() -> None:
    alone = HOURLY._replace(overlap=Overlap.SKIP)
    skipped = claim(alone, DUE, alone.schedule_id)
    assert (skipped.state, skipped.reason) == (TickState.SKIPPED, TickReason.STILL_RUNNING)
    assert skipped.detail == "run run-9 of its schedule had not ended"
    assert claim(alone, DUE, "another").state is TickState.DUE
    assert claim(alone, DUE._replace(by_hand=True), alone.schedule_id).state is TickState.DUE
    assert claim(HOURLY._replace(overlap=Overlap.QUEUE), DUE, HOURLY.schedule_id).state is TickState.DUE


def test_a_released_tick_is_due_for_any_worker() -> None:
    free = released(CLAIMED, NOW + 5)
    assert (free.state, free.lease_until, free.worker_id, free.retry_at) == (
        TickState.DUE,
        None,
        None,
        NOW + 5,
    )


def test_only_the_attempt_that_holds_a_tick_fires_it() -> None:
    assert is_claimed(CLAIMED, task())
    for other in (
        CLAIMED._replace(attempt=2),
        CLAIMED._replace(lease_until=None),
        CLAIMED._replace(state=TickState.FAILED),
    ):
        assert not is_claimed(other, task())
        assert request_or_tick(moment(NOW), HOURLY, other, task(), COMMIT) is None


def test_a_held_tick_becomes_a_request() -> None:
    request = request_or_tick(moment(NOW), HOURLY, CLAIMED, task(), COMMIT)
    assert isinstance(request, JobRequestV1)
    assert (request.request_id, request.idempotency_key) == (DUE.tick_id, f"schedule:{DUE.tick_id}")
    assert (request.source, request.event, request.sender, request.trusted) == (
        "manual",
        "schedule",
        "mira",
        True,
    )
    assert (request.repo_url, request.repo_full_name) == (HOURLY.repo_url, "harbour/lighthouse")
    assert (request.commit_sha, request.ref, request.submitted_at) == (
        COMMIT,
        "refs/heads/main",
        "2027-01-15T08:00:00.000Z",
    )
    assert (request.runs_on, request.priority, request.workflow_path) == ("illumos", Priority.HIGH, None)


def test_a_repository_is_named_by_its_url_when_its_schedule_gives_no_name() -> None:
    request = request_of(moment(NOW), HOURLY._replace(repo_full_name=None), CLAIMED, COMMIT)
    assert request.repo_full_name == "harbour/lighthouse"


def test_an_attempt_that_fired_already_gets_its_result_again() -> None:
    done = fired(CLAIMED, moment(NOW), "run-1", COMMIT)
    assert request_or_tick(moment(NOW), HOURLY, done, task(), COMMIT) == done
    assert request_or_tick(moment(NOW), HOURLY, done, task(attempt=2), COMMIT) is None


def test_a_tick_that_is_no_request_fails_at_once() -> None:
    failed = request_or_tick(moment(NOW), HOURLY, CLAIMED, task(), "no commit")
    assert isinstance(failed, Tick)
    assert (failed.state, failed.reason) == (TickState.FAILED, TickReason.NOT_A_REQUEST)
    assert (failed.failures, failed.settled_at, failed.lease_until) == (1, NOW, None)
    assert failed.detail


@pytest.mark.parametrize(
    ("reason", "late_by", "expected"),
    [
        (TickReason.ON_TIME, ON_TIME_SECONDS, TickReason.ON_TIME),
        (TickReason.ON_TIME, ON_TIME_SECONDS + 1, TickReason.LATE),
        (TickReason.CAUGHT_UP, ON_TIME_SECONDS + 1, TickReason.CAUGHT_UP),
    ],
    ids=["on time", "late", "caught up"],
)
def test_a_tick_that_fired_says_whether_it_was_late(
    reason: TickReason, late_by: float, expected: TickReason
) -> None:
    done = fired(CLAIMED._replace(reason=reason, detail="x"), moment(NOW + late_by), "run-1", COMMIT)
    assert (done.state, done.reason, done.detail) == (TickState.FIRED, expected, "")
    assert (done.run_id, done.commit_sha, done.settled_at) == ("run-1", COMMIT, NOW + late_by)
    assert (done.lease_until, done.retry_at) == (None, None)


def test_a_tick_that_could_not_fire_is_due_again_later_and_later() -> None:
    first = not_fired(CLAIMED, moment(NOW), TickReason.FORGE_AWAY, "x" * 2000, retry=True)
    assert (first.state, first.failures, first.lease_until, first.worker_id) == (TickState.DUE, 1, None, None)
    assert first.detail == "x" * 1000
    assert first.retry_at is not None
    assert NOW < first.retry_at <= NOW + RETRY_BASE_SECONDS
    often = not_fired(CLAIMED._replace(failures=4), moment(NOW), TickReason.FORGE_AWAY, "", retry=True)
    assert often.retry_at is not None
    assert often.retry_at - NOW > first.retry_at - NOW
    assert often.failures == 5


@pytest.mark.parametrize(
    ("by_hand", "retry"), [(True, True), (False, False)], ids=["asked by hand", "for good"]
)
def test_a_tick_that_is_not_tried_again_has_failed(*, by_hand: bool, retry: bool) -> None:
    failed = not_fired(
        CLAIMED._replace(by_hand=by_hand), moment(NOW), TickReason.BRANCH_GONE, "x" * 2000, retry=retry
    )
    assert (failed.state, failed.reason, failed.failures) == (TickState.FAILED, TickReason.BRANCH_GONE, 1)
    assert (failed.detail, failed.settled_at, failed.retry_at) == ("x" * 1000, NOW, None)


@given(
    name=st.text(min_size=1, max_size=300),
    priority=st.none() | st.sampled_from(Priority),
    path=st.none() | st.text(max_size=20),
)
def test_any_row_is_a_request_or_refused(name: str, priority: Priority | None, path: str | None) -> None:
    row = added(moment(NOW), spec(repo_full_name=name, workflow_path=path), "mira").schedule._replace(
        priority=priority
    )
    (tick,) = by_hand(moment(NOW), row, None).new
    try:
        request = request_of(moment(NOW), row, tick, COMMIT)
    except InvalidMessage:
        return
    assert JobRequestV1.decode(request.encode()) == request
    assert (request.request_id, request.event, request.sender) == (tick.tick_id, "schedule", "mira")
