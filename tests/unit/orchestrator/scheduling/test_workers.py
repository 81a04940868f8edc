"""Orders to workers, and when a worker takes jobs."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.quarantine import HealthRecord
from solstice_orchestrator.scheduling.workers import (
    DesiredWorkerState,
    DrainOrder,
    OrderRefusal,
    PauseOrder,
    Presence,
    QuarantineOrder,
    ResumeOrder,
    WorkerEligibility,
    WorkerJob,
    WorkerOrder,
    WorkerState,
    WorkerView,
    active,
    apply_order,
    free_slots,
    inherited_eligibility,
    living,
    may_claim,
    presence_at,
    slots_of,
    state_at,
)

NOW = 1000.0
SICK = HealthRecord(failures=3, quarantined_until=NOW + 10)
HEALED = HealthRecord(failures=3, quarantined_until=NOW)
PAUSED = WorkerEligibility(ordered=DesiredWorkerState.PAUSE)
DRAINING = WorkerEligibility(ordered=DesiredWorkerState.DRAIN)

ORDERS = st.one_of(
    st.just(PauseOrder()),
    st.just(ResumeOrder()),
    st.just(DrainOrder()),
    st.builds(QuarantineOrder, seconds=st.floats(1, 1e6)),
)


@pytest.mark.parametrize(
    ("eligibility", "state"),
    [
        pytest.param(WorkerEligibility(), WorkerState.ACTIVE, id="new"),
        pytest.param(WorkerEligibility(record=SICK), WorkerState.QUARANTINED, id="quarantined"),
        pytest.param(WorkerEligibility(record=HEALED), WorkerState.ACTIVE, id="its-time-is-over"),
        pytest.param(PAUSED, WorkerState.PAUSED, id="paused"),
        pytest.param(
            WorkerEligibility(ordered=DesiredWorkerState.PAUSE, record=SICK),
            WorkerState.PAUSED,
            id="paused-and-sick",
        ),
        pytest.param(
            WorkerEligibility(ordered=DesiredWorkerState.DRAIN, record=SICK),
            WorkerState.DRAINING,
            id="draining-and-sick",
        ),
    ],
)
def test_a_worker_takes_jobs_only_while_nothing_stands_against_it(
    eligibility: WorkerEligibility, state: WorkerState
) -> None:
    assert state_at(eligibility, NOW) is state
    assert may_claim(eligibility, NOW) is (state is WorkerState.ACTIVE)


@pytest.mark.parametrize(
    ("eligibility", "order", "state"),
    [
        pytest.param(WorkerEligibility(), PauseOrder(), WorkerState.PAUSED, id="pause"),
        pytest.param(PAUSED, PauseOrder(), WorkerState.PAUSED, id="pause-again"),
        pytest.param(PAUSED, ResumeOrder(), WorkerState.ACTIVE, id="resume"),
        pytest.param(WorkerEligibility(record=SICK), ResumeOrder(), WorkerState.ACTIVE, id="release"),
        pytest.param(WorkerEligibility(), ResumeOrder(), WorkerState.ACTIVE, id="resume-without-need"),
        pytest.param(
            WorkerEligibility(), QuarantineOrder(seconds=5), WorkerState.QUARANTINED, id="quarantine"
        ),
        pytest.param(PAUSED, QuarantineOrder(seconds=5), WorkerState.PAUSED, id="quarantine-a-paused-one"),
        pytest.param(PAUSED, DrainOrder(), WorkerState.DRAINING, id="drain-a-paused-one"),
        pytest.param(DRAINING, DrainOrder(), WorkerState.DRAINING, id="drain-again"),
    ],
)
def test_an_order_is_obeyed(eligibility: WorkerEligibility, order: WorkerOrder, state: WorkerState) -> None:
    after = apply_order(eligibility, Presence.ALIVE, order, NOW)
    assert isinstance(after, WorkerEligibility)
    assert state_at(after, NOW) is state


@pytest.mark.parametrize(
    "order", [PauseOrder(), ResumeOrder(), QuarantineOrder(seconds=1)], ids=lambda order: type(order).__name__
)
def test_a_drain_cannot_be_taken_back(order: WorkerOrder) -> None:
    assert apply_order(DRAINING, Presence.ALIVE, order, NOW) is OrderRefusal.IS_DRAINING


@pytest.mark.parametrize("presence", [Presence.LOST, Presence.ENDED])
def test_what_is_gone_cannot_be_drained_but_its_successor_can_be_kept_back(presence: Presence) -> None:
    assert apply_order(WorkerEligibility(), presence, DrainOrder(), NOW) is OrderRefusal.IS_GONE
    assert apply_order(WorkerEligibility(), presence, PauseOrder(), NOW) == PAUSED
    assert apply_order(DRAINING, presence, PauseOrder(), NOW) == PAUSED


def test_resuming_forgets_the_failures_so_that_the_next_does_not_count_double() -> None:
    assert (
        apply_order(WorkerEligibility(record=SICK), Presence.ALIVE, ResumeOrder(), NOW) == WorkerEligibility()
    )


@pytest.mark.parametrize(
    ("eligibility", "next_one"),
    [
        pytest.param(WorkerEligibility(record=SICK), WorkerEligibility(record=SICK), id="quarantined"),
        pytest.param(PAUSED, PAUSED, id="paused"),
        pytest.param(DRAINING, WorkerEligibility(), id="drained"),
        pytest.param(
            WorkerEligibility(ordered=DesiredWorkerState.DRAIN, record=SICK),
            WorkerEligibility(record=SICK),
            id="drained-while-sick",
        ),
    ],
)
def test_a_restart_ends_a_drain_and_heals_nothing(
    eligibility: WorkerEligibility, next_one: WorkerEligibility
) -> None:
    assert inherited_eligibility(eligibility) == next_one


@pytest.mark.parametrize(
    ("seen_at", "ended_at", "presence"),
    [
        pytest.param(941.0, None, Presence.ALIVE, id="within-a-lease"),
        pytest.param(940.0, None, Presence.LOST, id="silent-for-a-lease"),
        pytest.param(999.0, 999.5, Presence.ENDED, id="took-its-leave"),
    ],
)
def test_presence_follows_from_the_heartbeat(
    seen_at: float, ended_at: float | None, presence: Presence
) -> None:
    assert presence_at(seen_at, ended_at, NOW, lease_seconds=60.0) is presence


@given(st.lists(st.tuples(ORDERS, st.sampled_from(Presence), st.floats(0, 1e6))))
def test_under_any_order_only_an_active_worker_claims(
    story: list[tuple[WorkerOrder, Presence, float]],
) -> None:
    eligibility, until, held_back = WorkerEligibility(), 0.0, False
    for order, presence, now in story:
        after = apply_order(eligibility, presence, order, now)
        if isinstance(after, OrderRefusal):
            continue
        eligibility = after
        match order:
            case ResumeOrder():
                until, held_back = 0.0, False
            case QuarantineOrder(seconds=seconds):
                until = now + seconds
                # The drain of an ended worker is over; later orders are for its successor.
            case _:
                held_back = True
        assert may_claim(eligibility, now) is (not held_back and now >= until)


def view(*labels: str, slots: Mapping[str, int], limit: int = 9, shrunk_to: int | None = None) -> WorkerView:
    """A worker that runs a job of each of these labels."""
    return WorkerView(
        worker_id="w-1",
        name="east",
        host="east",
        version="1",
        slots=slots,
        limit=limit,
        presence=Presence.ALIVE,
        state=WorkerState.ACTIVE,
        quarantined_until=None,
        failures_in_a_row=0,
        started_at=NOW,
        seen_at=NOW,
        jobs=tuple(
            WorkerJob(job_id=str(number), name="test", runs_on=label, attempt=1, started_at=NOW)
            for number, label in enumerate(labels)
        ),
        shrunk_to=shrunk_to,
    )


@pytest.mark.parametrize(
    ("worker", "slots", "free"),
    [
        pytest.param(view(slots={"linux": 3}), 3, 3, id="idle"),
        pytest.param(view(slots={"arm": 3}), 0, 0, id="of-another-label"),
        pytest.param(view("linux", slots={"linux": 3}), 3, 2, id="one-in-use"),
        pytest.param(view("arm", slots={"linux": 3, "arm": 2}), 3, 3, id="another-label-in-use"),
        pytest.param(view("linux", "linux", slots={"linux": 1}), 2, 0, id="more-than-it-has"),
        pytest.param(view("arm", "arm", slots={"linux": 3, "arm": 2}, limit=3), 3, 1, id="limit-over-all"),
        pytest.param(view("linux", slots={"linux": 3}, shrunk_to=2), 2, 1, id="shrunk"),
        pytest.param(view("linux", "arm", slots={"linux": 3}, shrunk_to=1), 1, 0, id="shrunk-below-its-use"),
        pytest.param(view("linux", slots={}), 1, 0, id="never-registered"),
    ],
)
def test_slots_are_counted_by_label_and_bounded_by_what_it_takes_at_once(
    worker: WorkerView, slots: int, free: int
) -> None:
    assert (slots_of(worker, "linux"), free_slots(worker, "linux")) == (slots, free)


def test_living_are_those_that_are_there_and_active_those_that_take_jobs() -> None:
    here = view(slots={})
    lost, paused = replace(here, presence=Presence.LOST), replace(here, state=WorkerState.PAUSED)
    assert living([here, lost, paused]) == [here, paused]
    assert active([here, lost, paused]) == [here]
