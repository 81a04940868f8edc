"""The database's time is extrapolated for a while after a reading, and never guessed."""

import pytest

from solstice_orchestrator.store.postgresql.tables import clock as module
from solstice_orchestrator.store.postgresql.tables.clock import ESTIMATE_SECONDS, EstimatedClock

DATABASE = 1_800_000_000.0


class Monotonic:
    """This machine's own clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 5000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_clock_without_a_reading_shows_nothing(own: Monotonic) -> None:
    own.now = 0.0  # a machine that has just started
    assert EstimatedClock().now() is None


def test_the_estimate_continues_from_the_last_reading_until_that_is_too_old(own: Monotonic) -> None:
    estimated = EstimatedClock()
    estimated.hear(DATABASE)
    shown = []
    for _ in range(3):
        shown.append(estimated.now())
        own.now += ESTIMATE_SECONDS / 2
    assert shown == [DATABASE, DATABASE + ESTIMATE_SECONDS / 2, None]


def test_a_slow_reading_does_not_set_the_estimate_back(own: Monotonic) -> None:
    estimated = EstimatedClock()
    estimated.hear(DATABASE)
    own.now += 5
    estimated.hear(DATABASE + 2)
    assert estimated.now() == DATABASE + 5


def test_what_is_later_than_was_thought_counts_at_once(own: Monotonic) -> None:
    estimated = EstimatedClock()
    estimated.hear(DATABASE)
    own.now += 5
    estimated.hear(DATABASE + 100)
    assert estimated.now() == DATABASE + 100


def test_a_database_that_was_set_back_is_believed_once_the_rest_is_forgotten(own: Monotonic) -> None:
    estimated = EstimatedClock()
    estimated.hear(DATABASE)
    own.now += ESTIMATE_SECONDS
    estimated.hear(DATABASE - 3600)
    assert estimated.now() == DATABASE - 3600
