"""New work reaches the loops of its own process without the pause between notifications."""

import asyncio
from pathlib import Path

import pytest

from solstice_common.runtime.file_notifier import FileNotifier
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.sqlite import notifier as store_notifier
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from tests.builders import job
from tests.stores import admitted, planning_task

LONG_SECONDS = 60.0


async def test_new_work_within_a_pause_wakes_listeners_of_this_process_at_once(tmp_path: Path) -> None:
    here, elsewhere = FileNotifier(tmp_path), FileNotifier(tmp_path)
    notifier = StoreNotifier(here)
    async with here.listen() as own, elsewhere.listen() as other:
        notifier.notify()
        await asyncio.gather(own.wait(), other.wait())
        for changed in (own, other):
            changed.clear()
        notifier.notify()
        assert not own.is_set()
        notifier.notify(new_work=True)
        assert own.is_set()
        async with asyncio.timeout(10):
            await other.wait()
    notifier.close()


async def test_requests_and_planned_jobs_do_not_wait_for_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_notifier, "NOTIFY_PAUSE_SECONDS", LONG_SECONDS)
    async with (
        open_store(f"sqlite:///{tmp_path}/jobs.db") as store,
        store.changes() as changed,
        asyncio.timeout(LONG_SECONDS / 2),
    ):
        await admitted(store)
        await changed.wait()
        changed.clear()
        await admitted(store)
        await changed.wait()
        task = await planning_task(store)
        changed.clear()
        assert await store.planned(task, [job("true")], DEFAULT_RUN_SPEC)
        await changed.wait()
