"""Every job store's promises about schedules and their ticks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Unpack

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import RunState
from solstice_orchestrator.schedules.ticks import (
    LATE_SECONDS,
    REMEMBERED_TICKS,
    RETRY_CAP_SECONDS,
    TickReason,
    TickState,
)
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.schedule_store import (
    NotScheduled,
    ScheduleFilters,
    ScheduleStore,
    ScheduleView,
)
from tests.builders import job, job_request
from tests.schedules import COMMIT, HOLDER, added_schedule, claimed_tick, history, runs_of, spec, the_schedule
from tests.stores import SUCCEEDED, WORKER, ManualClock, admitted, claimed, planning_task

LEASE: Final = 60.0
HOUR: Final = 3600.0
NOON: Final = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
OpenStore = Callable[[], AbstractAsyncContextManager[JobStore]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=NOON - 60)


@pytest.fixture
def another(store_url: str, clock: ManualClock) -> OpenStore:
    """Open the test's store once more, as another orchestrator would."""
    return lambda: open_store(store_url, clock=clock, lease_seconds=LEASE)


@pytest.fixture
async def store(another: OpenStore) -> AsyncIterator[JobStore]:
    async with another() as opened:
        yield opened


@pytest.fixture
def schedule_store(store: JobStore) -> ScheduleStore:
    return store.schedule_store


class TestSchedules:
    async def test_a_schedule_is_what_was_asked_for(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        schedule_spec = spec(
            cron="30 2 * * MON-FRI",
            timezone="Europe/Berlin",
            missed=Missed.SKIP,
            overlap=Overlap.SKIP,
            workflow_path=".solstice/nightly.kdl",
            workflow_job_id="soak",
            runs_on="illumos",
            priority=Priority.LOW,
        )
        added = await schedule_store.add(schedule_spec, "mira")
        assert added == ScheduleView(
            schedule_id=added.schedule_id if isinstance(added, ScheduleView) else "",
            name="nightly",
            repo_url=schedule_spec.repo_url,
            repo_full_name="harbour/lighthouse",
            branch="main",
            cron="30 2 * * MON-FRI",
            timezone="Europe/Berlin",
            missed=Missed.SKIP,
            overlap=Overlap.SKIP,
            workflow_path=".solstice/nightly.kdl",
            workflow_job_id="soak",
            runs_on="illumos",
            priority=Priority.LOW,
            paused=False,
            created_by="mira",
            created_at=clock.now,
            changed_at=clock.now,
            # The next Monday: it is a Saturday.
            next_at=datetime(2026, 2, 2, 1, 30, tzinfo=UTC).timestamp(),
            last=None,
        )
        assert await schedule_store.schedule("nightly") == added
        assert await schedule_store.schedule(added.schedule_id) == added

    async def test_what_is_not_there_is_none(self, schedule_store: ScheduleStore) -> None:
        assert await schedule_store.schedule("nightly") is None
        for steer in (schedule_store.pause, schedule_store.resume, schedule_store.fire):
            assert await steer("nightly") is None
        assert await schedule_store.edit("nightly", {"branch": "main"}) is None
        assert await schedule_store.remove("nightly") is False
        assert await schedule_store.ticks("nightly", 10) == []

    async def test_two_have_not_one_name(self, schedule_store: ScheduleStore) -> None:
        first = await added_schedule(schedule_store)
        assert await schedule_store.add(spec(cron="@daily"), None) is NotScheduled.NAME_TAKEN
        await added_schedule(schedule_store, name="weekly")
        assert await schedule_store.edit("weekly", {"name": "nightly"}) is NotScheduled.NAME_TAKEN
        assert await schedule_store.schedules(limit=1) == [first]
        assert isinstance(await schedule_store.edit("nightly", {"name": "nightly"}), ScheduleView)

    async def test_they_are_listed_as_they_were_added_a_page_at_a_time(
        self, schedule_store: ScheduleStore
    ) -> None:
        names = ["zeta", "alpha", "mid"]
        added = [await added_schedule(schedule_store, name=name) for name in names]
        first = await schedule_store.schedules(limit=2)
        rest = await schedule_store.schedules(limit=2, after=first[-1].schedule_id)
        assert [*first, *rest] == added

    async def test_they_are_found_by_repository_and_branch(self, schedule_store: ScheduleStore) -> None:
        await added_schedule(schedule_store, name="one")
        await added_schedule(schedule_store, name="two", branch="refs/heads/release/1")
        await added_schedule(
            schedule_store, name="three", repo_full_name=None, repo_url="https://forge.example/x"
        )

        async def names(**given_filters: Unpack[ScheduleFilters]) -> list[str]:
            return [view.name for view in await schedule_store.schedules(limit=9, filters=given_filters)]

        assert await names(repository="harbour/lighthouse") == ["one", "two"]
        assert await names(repository="https://forge.example/x") == ["three"]
        assert await names(ref="refs/heads/main") == ["one", "three"]
        assert await names(ref="refs/heads/release/1", repository="harbour/lighthouse") == ["two"]

    async def test_another_time_is_from_now_on(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(1)
        changed = await schedule_store.edit("nightly", {"cron": "*/10 * * * *", "branch": "next"})
        assert isinstance(changed, ScheduleView)
        assert (changed.cron, changed.branch, changed.next_at, changed.changed_at) == (
            "*/10 * * * *",
            "next",
            NOON,
            clock.now,
        )
        clock.forward(HOUR)
        changed = await schedule_store.edit("nightly", {"timezone": "Asia/Kathmandu"})
        assert isinstance(changed, ScheduleView)
        # No orchestrator polled for an hour: ticks until now follow the old time.
        assert changed.next_at == NOON + HOUR + 300
        (task,) = (await schedule_store.claim(HOLDER, 9)).tasks
        assert task.tick_at == NOON + HOUR - 600
        assert [tick.count for tick in await history(schedule_store)] == [5, 1]

    async def test_what_is_paused_has_no_ticks_and_misses_none(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        paused_schedule = await schedule_store.pause("nightly")
        assert paused_schedule is not None
        assert (paused_schedule.paused, paused_schedule.next_at) == (True, None)
        clock.forward(3 * HOUR)
        assert (await schedule_store.claim(HOLDER, 9)).tasks == []
        resumed = await schedule_store.resume("nightly")
        assert resumed is not None
        assert (resumed.paused, resumed.next_at) == (False, NOON + 3 * HOUR)
        assert await history(schedule_store) == []

    async def test_one_that_is_paused_may_be_changed(self, schedule_store: ScheduleStore) -> None:
        await added_schedule(schedule_store)
        await schedule_store.pause("nightly")
        changed = await schedule_store.edit("nightly", {"cron": "*/10 * * * *"})
        assert isinstance(changed, ScheduleView)
        assert changed.next_at is None

    async def test_what_was_removed_leaves_its_runs(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert await schedule_store.remove("nightly")
        assert await schedule_store.schedules(limit=9) == []
        assert len((await runs_of(store)).runs) == 1
        assert await schedule_store.pause_seconds() is None


async def run_state(schedule_store: ScheduleStore) -> RunState | None:
    """Of the newest tick's run."""
    last = (await the_schedule(schedule_store)).last
    assert last is not None
    return last.run_state


class TestTicks:
    async def test_a_tick_becomes_a_run_of_what_the_branch_holds(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(
            schedule_store, runs_on="illumos", priority=Priority.HIGH, workflow_path="ci/night.kdl"
        )
        clock.forward(60.5)
        task = await claimed_tick(schedule_store)
        assert (task.ref, task.tick_at, task.by_hand) == ("refs/heads/main", NOON, False)
        settled = await schedule_store.fired(task, COMMIT)
        assert settled is not None
        assert (settled.state, settled.reason, settled.late_seconds) == (
            TickState.FIRED,
            TickReason.ON_TIME,
            0.5,
        )
        request = (await planning_task(store)).request
        assert request.commit_sha == COMMIT
        assert (request.event, request.source, request.ref) == ("schedule", "manual", "refs/heads/main")
        assert (request.workflow_path, request.runs_on, request.priority) == (
            "ci/night.kdl",
            "illumos",
            "high",
        )
        assert request.trusted is True
        view = await the_schedule(schedule_store)
        assert view.last is not None
        assert (view.next_at, view.last.run_id, view.last.run_state, view.last.commit_sha) == (
            NOON + HOUR,
            settled.run_id,
            RunState.PLANNING,
            COMMIT,
        )

    async def test_it_shows_what_its_run_is_at(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        seen = [await run_state(schedule_store)]
        assert await store.planned(await planning_task(store), [job("true")])
        seen.append(await run_state(schedule_store))
        (claim,) = await claimed(store)
        seen.append(await run_state(schedule_store))
        assert await store.finish(claim.key, SUCCEEDED)
        seen.append(await run_state(schedule_store))
        assert seen == [RunState.PLANNING, RunState.WAITING, RunState.RUNNING, RunState.SUCCEEDED]

    async def test_who_looks_when_nothing_is_due_gets_nothing(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        assert await schedule_store.pause_seconds() == 60
        assert (await schedule_store.claim(HOLDER, 9)).tasks == []
        clock.forward(60)
        assert await schedule_store.pause_seconds() == 0
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert (await schedule_store.claim(HOLDER, 9)).tasks == []
        assert await schedule_store.pause_seconds() == HOUR

    async def test_of_many_who_look_at_once_one_gets_it(
        self, another: OpenStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        for number in range(5):
            await added_schedule(schedule_store, name=f"schedule-{number}")
        clock.forward(60)
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(another()) for _ in range(4)]
            claimed = await asyncio.gather(
                *(
                    other.schedule_store.claim(f"worker-{number}", 2)
                    for other in others
                    for number in range(6)
                )
            )
        tasks = [task for each in claimed for task in each.tasks]
        assert sorted(task.schedule for task in tasks) == [f"schedule-{number}" for number in range(5)]

    async def test_a_tick_of_a_lost_holder_is_claimed_by_another_and_fires_once(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        lost = await claimed_tick(schedule_store, "gone")
        assert await schedule_store.pause_seconds() == LEASE
        clock.forward(LEASE)
        found = await claimed_tick(schedule_store, "there")
        assert (found.tick_id, found.attempt) == (lost.tick_id, lost.attempt + 1)
        # The lease was lost between the lookup at the forge and the admission.
        assert await schedule_store.fired(lost, COMMIT) is None
        assert await schedule_store.not_fired(lost, TickReason.BRANCH_GONE, "", retry=False) is None
        await schedule_store.release(lost)
        assert (await runs_of(store)).runs == []
        assert await schedule_store.fired(found, COMMIT) is not None
        assert await schedule_store.fired(lost, COMMIT) is None
        assert len((await runs_of(store)).runs) == 1
        assert [tick.state for tick in await history(schedule_store)] == [TickState.FIRED]

    async def test_firing_is_safe_to_repeat(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        task = await claimed_tick(schedule_store)
        first = await schedule_store.fired(task, COMMIT)
        clock.forward(5)
        assert await schedule_store.fired(task, "d" * 40) == first
        assert len((await runs_of(store)).runs) == 1

    async def test_both_holders_at_once_make_one_run(
        self, another: OpenStore, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        first = await claimed_tick(schedule_store)
        clock.forward(LEASE)
        second = await claimed_tick(schedule_store)
        async with another() as other:
            settled = await asyncio.gather(
                other.schedule_store.fired(first, COMMIT),
                schedule_store.fired(second, COMMIT),
                other.schedule_store.fired(second, COMMIT),
            )
        assert settled[0] is None
        assert settled[1] == settled[2] is not None
        assert len((await runs_of(store)).runs) == 1

    async def test_what_is_handed_back_is_due_at_once(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        task = await claimed_tick(schedule_store)
        await schedule_store.release(task)
        assert await schedule_store.pause_seconds() == 0
        assert (await claimed_tick(schedule_store, "another")).tick_id == task.tick_id

    async def test_a_clock_that_is_set_back_brings_no_tick_twice(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        for step in (60, -1800, 1800, HOUR, -2 * HOUR, HOUR, HOUR - 1, 1):
            clock.forward(step)
            for task in (await schedule_store.claim(HOLDER, 9)).tasks:
                await schedule_store.fired(task, COMMIT)
        assert [tick.tick_at for tick in await history(schedule_store)] == [NOON, NOON + HOUR]
        assert len((await runs_of(store)).runs) == 2

    async def test_changing_the_time_there_and_back_fires_no_tick_twice(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        clock.forward(-30)
        await schedule_store.edit("nightly", {"cron": "@daily"})
        changed = await schedule_store.edit("nightly", {"cron": "0 * * * *"})
        assert isinstance(changed, ScheduleView)
        assert changed.next_at == NOON
        clock.forward(30)
        claimed = await schedule_store.claim(HOLDER, 9)
        assert (claimed.tasks, claimed.settled) == ([], [])
        assert (await the_schedule(schedule_store)).next_at == NOON + HOUR

    async def test_one_that_waits_for_its_forge_meanwhile_fires_nevertheless(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        task = await claimed_tick(schedule_store)
        await schedule_store.not_fired(task, TickReason.FORGE_AWAY, "no route to host", retry=True)
        clock.forward(-30)
        await schedule_store.edit("nightly", {"cron": "@daily"})
        await schedule_store.edit("nightly", {"cron": "0 * * * *"})
        clock.forward(30 + RETRY_CAP_SECONDS)
        again = await claimed_tick(schedule_store)
        assert again.tick_id == task.tick_id
        await schedule_store.fired(again, COMMIT)
        assert [(tick.tick_at, tick.state) for tick in await history(schedule_store)] == [
            (NOON, TickState.FIRED)
        ]

    async def test_every_change_notifies(self, another: OpenStore, schedule_store: ScheduleStore) -> None:
        async with another() as other, other.schedule_store.changes() as changed:
            for change in (
                lambda: added_schedule(schedule_store),
                lambda: schedule_store.edit("nightly", {"branch": "next"}),
                lambda: schedule_store.pause("nightly"),
                lambda: schedule_store.resume("nightly"),
                lambda: schedule_store.fire("nightly"),
                lambda: schedule_store.remove("nightly"),
            ):
                changed.clear()
                await change()
                async with asyncio.timeout(30):
                    await changed.wait()


class TestMissed:
    async def test_after_downtime_one_run_makes_up_for_all(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store, missed=Missed.ONCE)
        clock.forward(60 + 3 * HOUR + 1800)
        claimed = await schedule_store.claim(HOLDER, 9)
        assert [(each.reason, each.count) for each in claimed.settled] == [(TickReason.MISSED, 3)]
        (task,) = claimed.tasks
        assert task.tick_at == NOON + 3 * HOUR
        await schedule_store.fired(task, COMMIT)
        missed, fired = await history(schedule_store)
        assert (missed.first_at, missed.tick_at, missed.count) == (NOON, NOON + 2 * HOUR, 3)
        assert (missed.state, missed.run_id) == (TickState.SKIPPED, None)
        assert (fired.state, fired.reason) == (TickState.FIRED, TickReason.CAUGHT_UP)
        assert len((await runs_of(store)).runs) == 1

    async def test_after_downtime_all_may_be_skipped_and_that_is_recorded(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store, missed=Missed.SKIP)
        clock.forward(60 + LATE_SECONDS + 1)
        claimed = await schedule_store.claim(HOLDER, 9)
        assert claimed.tasks == []
        (missed,) = await history(schedule_store)
        assert (missed.first_at, missed.tick_at, missed.count) == (None, NOON, 1)
        clock.now = NOON + HOUR
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert len((await runs_of(store)).runs) == 1

    async def test_a_lease_that_ran_out_meanwhile_makes_no_second_run(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        gone = await claimed_tick(schedule_store)
        clock.forward(HOUR + 1)
        found = await claimed_tick(schedule_store)
        assert found.tick_at == NOON + HOUR
        assert await schedule_store.fired(gone, COMMIT) is None
        await schedule_store.fired(found, COMMIT)
        overtaken, fired = await history(schedule_store)
        assert (overtaken.state, overtaken.reason) == (TickState.FAILED, TickReason.OVERTAKEN)
        assert fired.state is TickState.FIRED
        assert len((await runs_of(store)).runs) == 1


class TestTrouble:
    async def test_a_forge_that_is_away_is_asked_again_with_growing_pauses_until_the_next_tick(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        tries = 0
        while clock.now < NOON + HOUR:
            task = await claimed_tick(schedule_store)
            tries += 1
            settled = await schedule_store.not_fired(
                task, TickReason.FORGE_AWAY, "no route to host", retry=True
            )
            assert settled is not None
            assert settled.state is TickState.DUE
            pause = await schedule_store.pause_seconds()
            assert pause is not None
            assert pause <= min(RETRY_CAP_SECONDS, NOON + HOUR - clock.now)
            clock.forward(max(pause, 1.0))
        assert 10 < tries < HOUR / 10
        task = await claimed_tick(schedule_store)
        assert task.tick_at == NOON + HOUR
        overtaken, due = await history(schedule_store)
        assert (overtaken.reason, overtaken.failures) == (TickReason.OVERTAKEN, tries)
        assert "no route to host" in overtaken.detail
        assert due.state is TickState.DUE

    async def test_one_try_that_succeeds_is_enough(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.not_fired(
            await claimed_tick(schedule_store), TickReason.FORGE_AWAY, "reset", retry=True
        )
        shown = (await the_schedule(schedule_store)).last
        assert shown is not None
        assert (shown.state, shown.failures, shown.detail) == (TickState.DUE, 1, "reset")
        assert shown.retry_at is not None
        clock.forward(RETRY_CAP_SECONDS)
        await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        (fired,) = await history(schedule_store)
        # The forge was unavailable for minutes: the tick becomes a run, but a late one.
        assert (fired.state, fired.reason, fired.detail) == (TickState.FIRED, TickReason.LATE, "")

    async def test_a_branch_that_is_gone_is_reported_and_the_next_tick_tries_again(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.not_fired(
            await claimed_tick(schedule_store),
            TickReason.BRANCH_GONE,
            "there is no refs/heads/main",
            retry=False,
        )
        (gone,) = await history(schedule_store)
        assert (gone.state, gone.reason, gone.settled_at) == (
            TickState.FAILED,
            TickReason.BRANCH_GONE,
            clock.now,
        )
        clock.forward(HOUR)
        assert (await claimed_tick(schedule_store)).tick_at == NOON + HOUR

    async def test_an_unseen_tick_is_recorded_by_a_pause(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        await schedule_store.pause("nightly")
        (skipped,) = await history(schedule_store)
        assert (skipped.tick_at, skipped.reason) == (NOON, TickReason.PAUSED)

    async def test_a_pause_ends_what_could_not_fire_yet(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        task = await claimed_tick(schedule_store)
        await schedule_store.pause("nightly")
        assert await schedule_store.fired(task, COMMIT) is None
        (skipped,) = await history(schedule_store)
        assert (skipped.state, skipped.reason) == (TickState.SKIPPED, TickReason.PAUSED)
        assert (await runs_of(store)).runs == []

    async def test_what_cannot_be_asked_for_is_reported(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store, repo_url="file:relative")
        clock.forward(60)
        settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert settled is not None
        assert (settled.state, settled.reason) == (TickState.FAILED, TickReason.NOT_A_REQUEST)
        assert "repo_url" in settled.detail
        assert (await runs_of(store)).runs == []


class TestOverlap:
    async def test_a_run_that_has_not_ended_holds_the_next_one_up_where_asked(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store, overlap=Overlap.SKIP)
        clock.forward(60)
        first = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert first is not None
        assert first.run_id is not None
        clock.forward(HOUR)
        claimed = await schedule_store.claim(HOLDER, 9)
        assert (claimed.tasks, [each.reason for each in claimed.settled]) == ([], [TickReason.STILL_RUNNING])
        assert first.run_id in claimed.settled[0].detail
        await store.cancel_run(first.run_id)
        clock.forward(HOUR)
        assert (await claimed_tick(schedule_store)).tick_at == NOON + 2 * HOUR

    async def test_else_they_run_beside_each_other(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        for _ in range(3):
            clock.now = (await the_schedule(schedule_store)).next_at or 0.0
            await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert len((await runs_of(store)).runs) == 3

    async def test_a_push_to_its_branch_ends_no_scheduled_run_nor_the_other_way_round(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        fields = {"branch": "feature", "repo_url": "https://forge.example/acme/app.git"}
        await added_schedule(schedule_store, **fields)

        async def pushed() -> str:
            return await admitted(store, job_request(repo_url=fields["repo_url"], ref="refs/heads/feature"))

        run_ids = [await pushed()]
        clock.forward(60)
        settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert settled is not None
        assert settled.run_id is not None
        run_ids.append(settled.run_id)
        for _ in run_ids:
            assert await store.planned(await planning_task(store), [job("true")]) is True
        states = [view.state for run_id in run_ids if (view := await store.run(run_id))]
        assert states == [RunState.WAITING] * 2
        newer = await pushed()
        assert await store.planned(await planning_task(store), [job("true")]) is True
        states = [view.state for run_id in (*run_ids, newer) if (view := await store.run(run_id))]
        assert states == [RunState.CANCELLED, RunState.WAITING, RunState.WAITING]


class TestByHand:
    async def test_it_fires_now_beside_its_ticks_and_while_paused(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store, overlap=Overlap.SKIP)
        await schedule_store.pause("nightly")
        for _ in range(2):
            clock.forward(1)
            assert await schedule_store.fire("nightly") is not None
            await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        await schedule_store.resume("nightly")
        assert [(tick.by_hand, tick.reason) for tick in await history(schedule_store)] == [
            (True, TickReason.BY_HAND)
        ] * 2
        assert (await the_schedule(schedule_store)).next_at == NOON
        assert len((await runs_of(store)).runs) == 2

    async def test_it_is_tried_once(self, schedule_store: ScheduleStore, clock: ManualClock) -> None:
        await added_schedule(schedule_store)
        await schedule_store.fire("nightly")
        await schedule_store.not_fired(
            await claimed_tick(schedule_store), TickReason.FORGE_AWAY, "no route", retry=True
        )
        (tick,) = await history(schedule_store)
        assert (tick.state, tick.reason, tick.detail) == (TickState.FAILED, TickReason.FORGE_AWAY, "no route")

    async def test_the_next_tick_does_not_overtake_it(
        self, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        await schedule_store.fire("nightly")
        clock.forward(60)
        tasks = (await schedule_store.claim(HOLDER, 9)).tasks
        assert sorted(task.by_hand for task in tasks) == [False, True]


class TestHistory:
    async def test_the_newest_ticks_are_kept(self, schedule_store: ScheduleStore, clock: ManualClock) -> None:
        await added_schedule(schedule_store)
        for number in range(REMEMBERED_TICKS + 5):
            clock.now = NOON + number * HOUR
            await schedule_store.not_fired(
                await claimed_tick(schedule_store), TickReason.BRANCH_GONE, "gone", retry=False
            )
        stored = await history(schedule_store)
        assert [tick.tick_at for tick in stored] == [
            NOON + number * HOUR for number in range(5, REMEMBERED_TICKS + 5)
        ]

    async def test_what_is_old_goes_with_the_runs(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert settled is not None
        assert settled.run_id is not None
        await store.cancel_run(settled.run_id)
        clock.forward(HOUR)
        due = await claimed_tick(schedule_store)
        await store.purge(10 * 86_400, 10)
        assert len(await history(schedule_store)) == 2
        clock.forward(10 * 86_400)
        await store.purge(10 * 86_400 - 1, 10)
        # Unfinished runs stay, and so does the schedule.
        assert [tick.tick_at for tick in await history(schedule_store)] == [due.tick_at]

    async def test_a_run_that_was_removed_has_no_state(
        self, store: JobStore, schedule_store: ScheduleStore, clock: ManualClock
    ) -> None:
        await added_schedule(schedule_store)
        clock.forward(60)
        settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert settled is not None
        assert settled.run_id is not None
        (tick,) = await history(schedule_store)
        assert tick.run_state is RunState.PLANNING
        await store.cancel_run(settled.run_id)
        (tick,) = await history(schedule_store)
        assert tick.run_state is RunState.CANCELLED


async def test_a_worker_may_hold_ticks_that_runs_no_jobs(store: JobStore, clock: ManualClock) -> None:
    """A paused worker still fires: admitting a run is not running it."""
    await added_schedule(store.schedule_store)
    clock.forward(60)
    assert (await claimed_tick(store.schedule_store, WORKER)).tick_at == NOON
