"""Processes of two versions on one SQLite file see each other's changes of schedules.

They notify in different directories, so each sees the other's changes at its next poll.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from solstice_orchestrator.git.heads import Branch
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.schedules.ticks import TickState
from solstice_orchestrator.stages import schedule_ticks
from solstice_orchestrator.stages.schedule_ticks import ScheduleRunner
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.sqlite import store as sqlite_store
from tests.schedules import COMMIT, added_schedule, history
from tests.stores import ManualClock

OLD_DIRECTORY = ".schedule-bells"
WAIT_SECONDS = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def stores(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, JobStore]]:
    """The older and the newer process's store of one file."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as older:
            older.setattr(sqlite_store, "SCHEDULE_CHANGES", OLD_DIRECTORY)
            first = await stack.enter_async_context(open_store(url, clock=clock))
        second = await stack.enter_async_context(open_store(url, clock=clock))
        yield {"older": first, "newer": second}


@pytest.mark.parametrize(("runs", "adds"), [("older", "newer"), ("newer", "older")])
async def test_a_schedule_that_the_other_version_added_is_fired(
    stores: dict[str, JobStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, runs: str, adds: str
) -> None:
    monkeypatch.setattr(schedule_ticks, "POLL_SECONDS", 0.05)

    async def head_of(branch: Branch) -> str:
        return COMMIT

    own, polled = stores[runs].schedule_store, asyncio.Event()
    pause_seconds = own.pause_seconds

    async def pause_after_poll() -> float | None:
        polled.set()
        return await pause_seconds()

    monkeypatch.setattr(own, "pause_seconds", pause_after_poll)
    runner = ScheduleRunner(
        schedule_store=own,
        worker_id=runs,
        head_of=head_of,
        metrics=Metrics(),
        rng=random.Random(1),
    )
    firing = asyncio.create_task(runner.run())
    try:
        async with own.changes() as changed, asyncio.timeout(WAIT_SECONDS):
            await polled.wait()
            await added_schedule(stores[adds].schedule_store)
            clock.forward(3600)
            while not any(
                tick.state is TickState.FIRED for tick in await history(stores[adds].schedule_store)
            ):
                await changed.wait()
                changed.clear()
    finally:
        firing.cancel()
        await asyncio.gather(firing, return_exceptions=True)


async def test_a_directory_that_an_older_version_left_is_not_touched(
    tmp_path: Path, clock: ManualClock
) -> None:
    left = tmp_path / f"store.db{OLD_DIRECTORY}"
    left.mkdir()
    (left / "0.fifo").touch()
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}", clock=clock) as store:
        await added_schedule(store.schedule_store)
    assert [file.name for file in left.iterdir()] == ["0.fifo"]
    assert (tmp_path / "store.db.schedule-changes").is_dir()
