"""Changes of a SQLite store wake the loops that may have work from them."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from solstice_common.runtime.file_notifier import FileNotifier
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, Reason
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.store.sqlite import notifier as store_notifier
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from tests.builders import job
from tests.stores import SUCCEEDED, WORKER, admitted, chunk, claimed, planning_task

LONG_SECONDS = 60.0


async def test_new_work_within_a_pause_wakes_listeners_of_this_process_at_once(tmp_path: Path) -> None:
    here, elsewhere = FileNotifier(tmp_path), FileNotifier(tmp_path)
    notifier = StoreNotifier(here)
    async with notifier.listen() as own, elsewhere.listen() as other:
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


async def test_listeners_are_notified_of_their_topics_and_other_processes_of_all(tmp_path: Path) -> None:
    notifier, elsewhere = StoreNotifier(FileNotifier(tmp_path)), FileNotifier(tmp_path)
    async with (
        notifier.listen(StoreTopic.PLANNING) as planning,
        notifier.listen(StoreTopic.CLAIMS | StoreTopic.OUTBOX) as claims,
        elsewhere.listen() as other,
        asyncio.timeout(10),
    ):
        notifier.notify(StoreTopic.PLANNING)
        await asyncio.gather(planning.wait(), other.wait())
        for changed in (planning, other):
            changed.clear()
        notifier.notify(StoreTopic.VIEWS)
        notifier.notify(StoreTopic.OUTBOX)
        await asyncio.gather(claims.wait(), other.wait())
        assert not planning.is_set()
        other.clear()
        elsewhere.notify()
        await asyncio.gather(planning.wait(), claims.wait(), other.wait())
    notifier.close()


async def test_each_loop_is_woken_by_what_may_give_it_work_and_not_by_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_notifier, "NOTIFY_PAUSE_SECONDS", 0.0)
    async with (
        open_store(f"sqlite:///{tmp_path}/jobs.db") as store,
        store.changes(StoreTopic.PLANNING) as to_plan,
        store.changes(StoreTopic.CLAIMS) as to_claim,
        store.changes(StoreTopic.OUTBOX) as to_publish,
        store.changes() as any_change,
        asyncio.timeout(LONG_SECONDS),
    ):

        async def woken(change: Awaitable[object]) -> set[StoreTopic]:
            """The topics that a change is for."""
            loops = {
                StoreTopic.PLANNING: to_plan,
                StoreTopic.CLAIMS: to_claim,
                StoreTopic.OUTBOX: to_publish,
            }
            for notified in (*loops.values(), any_change):
                notified.clear()
            await change
            await any_change.wait()
            return {topic for topic, notified in loops.items() if notified.is_set()}

        assert await woken(admitted(store)) == {StoreTopic.PLANNING, StoreTopic.OUTBOX}
        (task,) = await store.claim_planning(WORKER, 1)
        released = store.not_planned(task, Reason.RELEASED, "")
        assert StoreTopic.PLANNING in await woken(released)
        task = await planning_task(store)
        jobs = [job("true", name="one"), job("true", name="two", needs=("one",))]
        assert await woken(store.planned(task, jobs)) == {StoreTopic.CLAIMS, StoreTopic.OUTBOX}
        (claim,) = await claimed(store)
        assert await woken(store.append_log(claim.key, [chunk(1)])) == set()
        assert await woken(store.finish(claim.key, SUCCEEDED)) == {StoreTopic.CLAIMS, StoreTopic.OUTBOX}
        (claim,) = await claimed(store)
        assert await store.finish(claim.key, SUCCEEDED)
        assert StoreTopic.PLANNING in await woken(store.rerun(task.run_id))


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
