import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.quarantine import Record
from solstice_orchestrator.workers import (
    Drain,
    NotObeyed,
    Order,
    Ordered,
    Pause,
    Presence,
    Quarantine,
    Resume,
    Standing,
    WorkerState,
    inherited,
    may_claim,
    obey,
    presence_at,
    state_at,
)

NOW = 1000.0
SICK = Record(failures=3, quarantined_until=NOW + 10)
HEALED = Record(failures=3, quarantined_until=NOW)
PAUSED = Standing(ordered=Ordered.PAUSE)
DRAINING = Standing(ordered=Ordered.DRAIN)

ORDERS = st.one_of(
    st.just(Pause()), st.just(Resume()), st.just(Drain()), st.builds(Quarantine, seconds=st.floats(1, 1e6))
)


@pytest.mark.parametrize(
    ("standing", "state"),
    [
        pytest.param(Standing(), WorkerState.ACTIVE, id="new"),
        pytest.param(Standing(record=SICK), WorkerState.QUARANTINED, id="quarantined"),
        pytest.param(Standing(record=HEALED), WorkerState.ACTIVE, id="its-time-is-over"),
        pytest.param(PAUSED, WorkerState.PAUSED, id="paused"),
        pytest.param(Standing(ordered=Ordered.PAUSE, record=SICK), WorkerState.PAUSED, id="paused-and-sick"),
        pytest.param(
            Standing(ordered=Ordered.DRAIN, record=SICK), WorkerState.DRAINING, id="draining-and-sick"
        ),
    ],
)
def test_a_worker_takes_jobs_only_while_nothing_stands_against_it(
    standing: Standing, state: WorkerState
) -> None:
    assert state_at(standing, NOW) is state
    assert may_claim(standing, NOW) is (state is WorkerState.ACTIVE)


@pytest.mark.parametrize(
    ("standing", "order", "state"),
    [
        pytest.param(Standing(), Pause(), WorkerState.PAUSED, id="pause"),
        pytest.param(PAUSED, Pause(), WorkerState.PAUSED, id="pause-again"),
        pytest.param(PAUSED, Resume(), WorkerState.ACTIVE, id="resume"),
        pytest.param(Standing(record=SICK), Resume(), WorkerState.ACTIVE, id="release"),
        pytest.param(Standing(), Resume(), WorkerState.ACTIVE, id="resume-without-need"),
        pytest.param(Standing(), Quarantine(seconds=5), WorkerState.QUARANTINED, id="quarantine"),
        pytest.param(PAUSED, Quarantine(seconds=5), WorkerState.PAUSED, id="quarantine-a-paused-one"),
        pytest.param(PAUSED, Drain(), WorkerState.DRAINING, id="drain-a-paused-one"),
        pytest.param(DRAINING, Drain(), WorkerState.DRAINING, id="drain-again"),
    ],
)
def test_an_order_is_obeyed(standing: Standing, order: Order, state: WorkerState) -> None:
    after = obey(standing, Presence.ALIVE, order, NOW)
    assert isinstance(after, Standing)
    assert state_at(after, NOW) is state


@pytest.mark.parametrize(
    "order", [Pause(), Resume(), Quarantine(seconds=1)], ids=lambda order: type(order).__name__
)
def test_a_drain_cannot_be_taken_back(order: Order) -> None:
    assert obey(DRAINING, Presence.ALIVE, order, NOW) is NotObeyed.IS_DRAINING


@pytest.mark.parametrize("presence", [Presence.LOST, Presence.ENDED])
def test_what_is_gone_cannot_be_drained_but_its_successor_can_be_kept_back(presence: Presence) -> None:
    assert obey(Standing(), presence, Drain(), NOW) is NotObeyed.IS_GONE
    assert obey(Standing(), presence, Pause(), NOW) == PAUSED
    assert obey(DRAINING, presence, Pause(), NOW) == PAUSED


def test_resuming_forgets_the_failures_so_that_the_next_does_not_count_double() -> None:
    assert obey(Standing(record=SICK), Presence.ALIVE, Resume(), NOW) == Standing()


@pytest.mark.parametrize(
    ("standing", "next_one"),
    [
        pytest.param(Standing(record=SICK), Standing(record=SICK), id="quarantined"),
        pytest.param(PAUSED, PAUSED, id="paused"),
        pytest.param(DRAINING, Standing(), id="drained"),
        pytest.param(
            Standing(ordered=Ordered.DRAIN, record=SICK), Standing(record=SICK), id="drained-while-sick"
        ),
    ],
)
def test_a_restart_ends_a_drain_and_heals_nothing(standing: Standing, next_one: Standing) -> None:
    assert inherited(standing) == next_one


@pytest.mark.parametrize(
    ("seen_at", "ended_at", "presence"),
    [
        pytest.param(941.0, None, Presence.ALIVE, id="within-a-lease"),
        pytest.param(940.0, None, Presence.LOST, id="silent-for-a-lease"),
        pytest.param(999.0, 999.5, Presence.ENDED, id="took-its-leave"),
    ],
)
def test_presence_is_told_by_the_heartbeat(
    seen_at: float, ended_at: float | None, presence: Presence
) -> None:
    assert presence_at(seen_at, ended_at, NOW, lease_seconds=60.0) is presence


@given(st.lists(st.tuples(ORDERS, st.sampled_from(Presence), st.floats(0, 1e6))))
def test_whatever_is_ordered_only_an_unencumbered_worker_claims(
    story: list[tuple[Order, Presence, float]],
) -> None:
    standing, until, held_back = Standing(), 0.0, False
    for order, presence, now in story:
        after = obey(standing, presence, order, now)
        if isinstance(after, NotObeyed):
            continue
        standing = after
        match order:
            case Resume():
                until, held_back = 0.0, False
            case Quarantine(seconds=seconds):
                until = now + seconds
                # A drain of one that is gone by now is over; anything said afterwards is for its successor.
            case _:
                held_back = True
        assert may_claim(standing, now) is (not held_back and now >= until)
