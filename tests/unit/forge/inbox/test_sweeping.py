"""The choice of old deliveries, and the rhythm of sweeps."""

import random

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_forge.inbox.retention import run_retention, sweep
from solstice_forge.inbox.sweeping import DAY_SECONDS, SweepResult, SweepStep, step

T = 1_790_000_000.0


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param([], SweepStep(old=[], up_to=None, more=False), id="nothing"),
        pytest.param([T - 2, T - 1], SweepStep(old=[0, 1], up_to=1, more=False), id="all-old"),
        pytest.param([T - 3, T - 2, T - 1], SweepStep(old=[0, 1, 2], up_to=2, more=True), id="a-full-step"),
        pytest.param(
            [T - 1, T, T - 1], SweepStep(old=[0], up_to=0, more=False), id="first-young-one-ends-it"
        ),
        pytest.param(
            [T - 1, T + 2 * DAY_SECONDS, T - 1], SweepStep(old=[0, 2], up_to=2, more=True), id="wrong-clock"
        ),
    ],
)
def test_step_takes_the_old_and_stops_at_the_young(ages: list[float], expected: SweepStep) -> None:
    assert step(list(enumerate(ages)), T, 3) == expected


class Ended(Exception):
    pass


class OldInbox:
    """Has so many old rows; it is unavailable at first."""

    def __init__(self, bodies: int, rows: int) -> None:
        self.bodies, self.rows = bodies, rows
        self.away = True
        self.before: set[float] = set()

    async def strip(self, before: float, limit: int) -> SweepResult:
        if self.away:
            self.away = False
            raise StoreUnavailable("inbox", "away")
        self.before.add(before)
        removed = min(limit, self.bodies)
        self.bodies -= removed
        return SweepResult(rows=removed, more=self.bodies > 0)

    async def forget(self, before: float, limit: int) -> SweepResult:
        self.before.add(before)
        removed = min(limit, self.rows)
        self.rows -= removed
        return SweepResult(rows=removed, more=self.rows > 0)

    async def forgettable(self, before: float) -> int:
        return self.rows


async def test_sweeps_go_on_after_trouble_until_nothing_old_is_left() -> None:
    inbox, slept = OldInbox(bodies=450, rows=250), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(each > 1 for each in slept) == 3:
            raise Ended

    with pytest.raises(Ended):
        await run_retention(
            inbox, body_days=30, memory_days=365, rng=random.Random(1), clock=lambda: T, sleep=sleep
        )
    assert (inbox.bodies, inbox.rows) == (0, 0)
    assert inbox.before == {T - 30 * DAY_SECONDS, T - 365 * DAY_SECONDS}


async def test_nothing_goes_when_everything_is_to_be_kept() -> None:
    inbox = OldInbox(bodies=1, rows=1)
    assert await sweep(inbox.strip, None) == 0
    assert inbox.away
