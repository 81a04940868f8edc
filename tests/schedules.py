"""Schedules and ticks for tests, without a forge."""

from typing import Any, Final

from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.schedule_store import (
    ScheduleSpec,
    ScheduleStore,
    ScheduleView,
    TickTask,
    TickView,
)
from solstice_orchestrator.store.views import Page

COMMIT: Final = "c0ffee" + "0" * 34
HOLDER: Final = "worker-a"


def spec(**fields: Any) -> ScheduleSpec:
    """A schedule for every hour, unless given otherwise."""
    return ScheduleSpec(
        **{
            "name": "nightly",
            "repo_url": "https://forge.example/harbour/lighthouse.git",
            "repo_full_name": "harbour/lighthouse",
            "branch": "main",
            "cron": "0 * * * *",
            **fields,
        }
    )


async def added_schedule(schedule_store: ScheduleStore, **fields: Any) -> ScheduleView:
    """A new schedule."""
    view = await schedule_store.add(spec(**fields), None)
    assert isinstance(view, ScheduleView)
    return view


async def the_schedule(schedule_store: ScheduleStore, which: str = "nightly") -> ScheduleView:
    view = await schedule_store.schedule(which)
    assert view is not None
    return view


async def claimed_tick(schedule_store: ScheduleStore, holder: str = HOLDER) -> TickTask:
    """The one tick that is due."""
    (task,) = (await schedule_store.claim(holder, 10)).tasks
    return task


async def history(schedule_store: ScheduleStore, which: str = "nightly") -> list[TickView]:
    """The ticks, oldest first."""
    view = await the_schedule(schedule_store, which)
    return [*reversed(await schedule_store.ticks(view.schedule_id, 1000))]


async def runs_of(store: JobStore) -> Page:
    return await store.runs(limit=1000)
