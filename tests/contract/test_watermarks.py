"""Every store knows how far the pushes of each ref are handled."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.waits import NO_LAG, WatermarkLag
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import Claim, PlanningTask
from solstice_orchestrator.store.records.watermark_queries import PUSHES_SHOWN
from solstice_orchestrator.store.views import WatermarkView
from tests.builders import job, job_request
from tests.stores import FAILED, SUCCEEDED, WORKER, ManualClock, admitted, claimed, planned, planning_task

HARBOUR: Final = "lantern/harbour"
MAIN: Final = "refs/heads/main"


def push(repository: str | None = HARBOUR, ref: str | None = MAIN, **changes: Any) -> JobRequestV1:
    return job_request(repo_full_name=repository, ref=ref, **changes)


async def ended(store: JobStore, request: JobRequestV1) -> str:
    """Run the push until it has ended; return its run."""
    run_id = await planned(store, request=request)
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, SUCCEEDED)
    return run_id


async def only(store: JobStore, **filters: Any) -> WatermarkView:
    (watermark,) = await store.watermarks(limit=9, **filters)
    return watermark


def names(watermarks: Sequence[WatermarkView]) -> list[tuple[str, str]]:
    return [(each.repository, each.ref) for each in watermarks]


def handled(watermark: WatermarkView) -> str | None:
    return None if watermark.handled is None else watermark.handled.run_id


async def test_without_pushes_there_are_no_watermarks(store: JobStore) -> None:
    assert await store.watermarks(limit=9) == []
    assert await store.watermarks(limit=9, behind=True) == []
    assert await store.watermark_lag() == NO_LAG


async def test_a_push_is_behind_until_it_has_ended_and_then_is_the_watermark(
    store: JobStore, clock: ManualClock
) -> None:
    first = await admitted(store, push())
    clock.forward(10)
    watermark = await only(store)
    assert (handled(watermark), watermark.pending, watermark.lag_seconds) == (None, 1, 10.0)
    assert [each.run_id for each in watermark.pushes] == [first]
    assert await store.planned(await planning_task(store), [job("true")])
    (claim,) = await claimed(store)
    (running,) = (await only(store)).pushes
    assert running.state is RunState.RUNNING
    assert await store.watermark_lag() == WatermarkLag(1, 10.0)
    await store.finish(claim.key, FAILED)
    watermark = await only(store)
    assert (handled(watermark), watermark.pending, watermark.lag_seconds) == (first, 0, 0.0)
    assert (watermark.handled and watermark.handled.state) is RunState.FAILED
    assert await store.watermark_lag() == NO_LAG
    assert await store.watermarks(limit=9, behind=True) == []


async def test_what_came_behind_the_watermark_is_counted_and_its_first_pushes_shown(
    store: JobStore, clock: ManualClock
) -> None:
    last = await ended(store, push())
    pending = [await admitted(store, push()) for _ in range(PUSHES_SHOWN + 2)]
    clock.forward(60)
    watermark = await only(store, behind=True)
    assert (handled(watermark), watermark.pending, watermark.lag_seconds) == (last, len(pending), 60.0)
    assert [each.run_id for each in watermark.pushes] == pending[:PUSHES_SHOWN]


async def test_a_pending_push_that_was_overtaken_does_not_count(store: JobStore) -> None:
    await planned(store, job("true", runs_on="illumos"), request=push())
    newer = await ended(store, push())
    watermark = await only(store)
    assert (handled(watermark), watermark.pending, watermark.pushes) == (newer, 0, ())
    assert await store.watermark_lag() == NO_LAG
    assert await store.watermarks(limit=9, behind=True) == []


async def test_change_requests_reruns_and_requests_without_a_ref_are_no_pushes(
    store: JobStore, clock: ManualClock
) -> None:
    first = await ended(store, push())
    assert await store.rerun(first)
    await admitted(store, push(change_number=7, ref="refs/heads/fog"))
    await admitted(store, push(ref=None))
    clock.forward(10)
    watermark = await only(store)
    assert (handled(watermark), watermark.pending) == (first, 0)
    assert await store.watermark_lag() == NO_LAG


async def test_a_push_with_names_too_long_for_an_index_runs_and_has_no_watermark(store: JobStore) -> None:
    long = push(repository=None, repo_url=f"https://forge.example/{'quay/' * 80}harbour.git", ref="r" * 255)
    last = push(repository="🏮" * 255, ref="🌊" * 255)
    await admitted(store, long)
    run_id = await admitted(store, last)
    assert [each.run_id for each in (await only(store)).pushes] == [run_id]


async def test_a_delayed_push_counts_from_the_moment_when_it_may_start(
    store: JobStore, clock: ManualClock
) -> None:
    due = clock.now + 3600
    run_id = await admitted(store, push(not_before=format_seconds(due)))
    clock.forward(60)
    assert (await only(store)).pending == 0
    assert await store.watermark_lag() == NO_LAG
    clock.now = due + 5
    task = await planning_task(store)
    clock.forward(5)
    watermark = await only(store, behind=True)
    assert (watermark.pending, watermark.lag_seconds) == (1, 10.0)
    # A backoff of its planning is lag, too: the push is not handled.
    assert await store.not_planned(task, Reason.CHECKOUT_FAILED, "no route to host")
    clock.forward(1)
    assert (await only(store, behind=True)).lag_seconds == 11.0
    assert await store.cancel_run(run_id)
    assert handled(await only(store)) == run_id


async def test_pages_and_filters_choose_among_all_refs(store: JobStore) -> None:
    refs = [
        (repository, ref) for repository in ("a/a", "a/b", "b/a") for ref in ("refs/heads/x", "refs/heads/y")
    ]
    await ended(store, push("c/c", "refs/heads/x"))
    for repository, ref in refs:
        for _ in range(3):
            await admitted(store, push(repository, ref))
    every = [*refs, ("c/c", "refs/heads/x")]
    for behind, expected in ((False, every), (True, refs)):
        for size in (1, 2, 100):
            found, after = list[tuple[str, str]](), ("", "")
            while page := names(await store.watermarks(limit=size, after=after, behind=behind)):
                assert len(page) <= size
                found, after = found + page, page[-1]
            assert found == expected
        choices: tuple[dict[str, Any], ...] = (
            {"repository": "a/b"},
            {"ref": "refs/heads/x"},
            {"repository": "a/a", "ref": "refs/heads/y"},
            {"repository": "c/c"},
            {"repository": "no/one"},
        )
        for filters in choices:
            chosen = [
                each
                for each in expected
                if filters.get("repository", each[0]) == each[0] and filters.get("ref", each[1]) == each[1]
            ]
            found = names(await store.watermarks(limit=9, behind=behind, **filters))
            assert found == chosen, filters
            if chosen:
                rest = await store.watermarks(limit=9, behind=behind, after=chosen[0], **filters)
                assert names(rest) == chosen[1:], filters


async def test_a_purged_ref_has_no_watermark(store: JobStore, clock: ManualClock) -> None:
    await ended(store, push())
    clock.forward(100)
    await store.purge(50, 10)
    assert await store.watermarks(limit=9) == []


@dataclass(kw_only=True)
class PlainModel:
    """Steps of a store, with the pushes of each ref and those that ended."""

    store: JobStore
    clock: ManualClock
    rng: random.Random
    pushes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    tasks: list[PlanningTask] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    async def push(self) -> None:
        key = self.rng.choice(("a/a", "b/b")), self.rng.choice(("refs/heads/x", "refs/heads/y"))
        run_id = await admitted(self.store, push(*key))
        self.pushes.setdefault(key, []).append(run_id)
        self.since[run_id] = self.clock.now

    async def plan(self) -> None:
        self.tasks += await self.store.claim_planning(WORKER, 1)
        if self.tasks and self.rng.random() < 0.7:
            jobs = [job("true", name=f"job-{number}") for number in range(self.rng.randrange(1, 3))]
            await self.store.planned(self.tasks.pop(), jobs)

    async def claim(self) -> None:
        self.claims += await claimed(self.store, free={"linux": 2}, limit=2)

    async def finish(self) -> None:
        if self.claims:
            claim = self.claims.pop(self.rng.randrange(len(self.claims)))
            await self.store.finish(claim.key, self.rng.choice((SUCCEEDED, FAILED)))

    async def cancel(self) -> None:
        if self.since:
            await self.store.cancel_run(self.rng.choice([*self.since]))

    async def rerun(self) -> None:
        if self.ended:
            await self.store.rerun(self.rng.choice(sorted(self.ended)))

    async def note_ends(self) -> None:
        for run_id in self.since.keys() - self.ended:
            run = await self.store.run(run_id)
            assert run is not None
            if run.finished_at is not None:
                self.ended.add(run_id)

    def expected(self) -> list[tuple[str, str, str | None, list[str], float]]:
        found = []
        for (repository, ref), run_ids in sorted(self.pushes.items()):
            last = max((place for place, each in enumerate(run_ids) if each in self.ended), default=-1)
            behind = run_ids[last + 1 :]
            lag = max((self.clock.now - self.since[each] for each in behind), default=0.0)
            found.append((repository, ref, run_ids[last] if last >= 0 else None, behind, lag))
        return found


@pytest.mark.parametrize("seed", range(3))
async def test_any_history_ends_as_in_the_plain_model(store: JobStore, clock: ManualClock, seed: int) -> None:
    model = PlainModel(store=store, clock=clock, rng=random.Random(seed))
    steps = (model.push, model.push, model.plan, model.plan, model.claim, model.finish, model.finish)
    for _ in range(60):
        clock.forward(model.rng.randrange(1, 30))
        await model.rng.choice((*steps, model.cancel, model.rerun))()
        await model.note_ends()
        expected = model.expected()
        found = await store.watermarks(limit=9)
        assert [
            (
                each.repository,
                each.ref,
                handled(each),
                [push.run_id for push in each.pushes],
                each.lag_seconds,
            )
            for each in found
        ] == [(*key, behind[:PUSHES_SHOWN], lag) for *key, behind, lag in expected]
        assert [each.pending for each in found] == [len(behind) for *_, behind, _ in expected]
        assert await store.watermarks(limit=9, behind=True) == [each for each in found if each.pending]
        lags = [lag for *_, behind, lag in expected if behind]
        assert await store.watermark_lag() == WatermarkLag(len(lags), max(lags, default=0.0))
    assert model.ended
