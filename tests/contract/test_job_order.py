"""The order of jobs in every store: start tags, caps, ageing, groups and superseding."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_common.values.times import format_timestamp
from solstice_orchestrator.domain.jobs import Concurrency, GroupMode, JobSpec, Reason, RunSpec
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import Claim
from solstice_orchestrator.superseding.policy import SupersedeRule
from tests.builders import job, job_request
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    state_of,
)

MAX_WAIT = 600.0


@pytest.fixture
def opened(opened: OpenStore) -> OpenStore:
    return partial(opened, max_wait_seconds=MAX_WAIT)


def from_repository(name: str, **changes: Any) -> JobRequestV1:
    return job_request(repo_full_name=name, repo_url=f"https://forge.example/{name}.git", **changes)


async def many(store: JobStore, repository: str, count: int, **changes: Any) -> None:
    """A run of `count` jobs that wait."""
    specs = [job("true", name=f"job-{number}", **changes) for number in range(count)]
    await planned(store, *specs, request=from_repository(repository))


async def one_at_a_time(store: JobStore, slots: int) -> Sequence[Claim]:
    """The jobs that start on so many slots, which become free one after the other."""
    return [(await claimed(store, free={"linux": 1}, limit=1))[0] for _ in range(slots)]


def repositories(claims: Sequence[Claim]) -> list[str | None]:
    return [claim.request.repo_full_name for claim in claims]


class TestFairOrder:
    @pytest.mark.parametrize("started", [0, 7])
    async def test_with_a_thousand_jobs_of_one_waiting_another_starts_at_the_next_free_slot(
        self, store: JobStore, started: int
    ) -> None:
        await many(store, "acme/harbour", 1000)
        await one_at_a_time(store, started)
        await planned(store, job("true"), request=from_repository("reef/tide"))
        (claim,) = await one_at_a_time(store, 1)
        assert claim.request.repo_full_name == "reef/tide"

    async def test_repositories_take_turns_independent_of_their_numbers_of_jobs(
        self, store: JobStore
    ) -> None:
        await many(store, "acme/harbour", 20)
        await many(store, "acme/docs", 4)
        await many(store, "reef/tide", 4)
        claims = await claimed(store, free={"linux": 12}, limit=12)
        assert Counter(repositories(claims)) == {"acme/harbour": 4, "acme/docs": 4, "reef/tide": 4}

    async def test_what_is_handed_back_keeps_its_start_tag(self, store: JobStore) -> None:
        await many(store, "acme/harbour", 3)
        first, *_ = await claimed(store, free={"linux": 1}, limit=1)
        await store.finish(first.key, RELEASED)
        (again,) = await claimed(store, free={"linux": 1}, limit=1)
        assert again.key.job_id == first.key.job_id

    async def test_a_low_job_under_a_stream_of_high_ones_starts_once_it_is_overdue(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await planned(store, job("true", priority=Priority.LOW), request=from_repository("reef/tide"))
        begun = clock.now
        await many(store, "acme/harbour", 3, priority=Priority.HIGH)
        while True:
            clock.forward(60)
            await many(store, "acme/harbour", 2, priority=Priority.HIGH)
            (claim,) = await claimed(store, free={"linux": 1}, limit=1)
            await store.finish(claim.key, SUCCEEDED)
            if claim.spec.priority is Priority.LOW:
                break
            assert clock.now - begun <= MAX_WAIT
        assert clock.now - begun == MAX_WAIT + 60


class TestCaps:
    async def test_a_capped_repository_runs_no_more_and_delays_no_other(self, opened: OpenStore) -> None:
        async with opened(caps=Caps(of={"acme/harbour": 2})) as store:
            await many(store, "acme/harbour", 30)
            await many(store, "reef/tide", 3)
            claims = await claimed(store, free={"linux": 10}, limit=10)
            assert Counter(repositories(claims)) == {"acme/harbour": 2, "reef/tide": 3}
            own = next(claim for claim in claims if claim.request.repo_full_name == "acme/harbour")
            await store.finish(own.key, SUCCEEDED)
            assert repositories(await claimed(store)) == ["acme/harbour"]

    async def test_a_cap_for_all_is_each_repository_s_own(self, opened: OpenStore) -> None:
        async with opened(caps=Caps(default=1)) as store:
            for repository in ("acme/harbour", "acme/docs", "reef/tide"):
                await many(store, repository, 5)
            assert len(await claimed(store)) == 3

    async def test_many_who_claim_at_once_keep_the_cap(self, opened: OpenStore) -> None:
        caps = Caps(of={"acme/harbour": 3})
        async with opened(caps=caps) as store, opened(caps=caps) as other:
            await many(store, "acme/harbour", 20)
            claim_batches = await asyncio.gather(
                *(
                    each.claim(f"worker-{number}", {"linux": 5}, 5)
                    for number, each in enumerate([store, other] * 4)
                )
            )
            # A claim that found the repository locked got nothing; another claim shows that no job was
            # forgotten.
            rest = await claimed(store)
            assert sum(map(len, claim_batches)) + len(rest) == 3


def in_group(mode: GroupMode = GroupMode.QUEUE, group: str = "deploy") -> Concurrency:
    return Concurrency(group=group, mode=mode)


async def grouped_run(
    store: JobStore,
    *specs: JobSpec,
    mode: GroupMode = GroupMode.QUEUE,
    request: JobRequestV1 | None = None,
) -> str:
    """A run that holds a group as a whole, or waits for it."""
    run_id = await admitted(store, request)
    run_spec = RunSpec(concurrency=in_group(mode))
    assert await store.planned(await planning_task(store), specs or (job("true"),), run_spec)
    return run_id


async def states(store: JobStore, run_id: str) -> list[tuple[JobState, Reason]]:
    return [(view.state, view.reason) for view in await store.jobs(run_id=run_id, limit=100)]


async def run_of(store: JobStore, run_id: str) -> tuple[RunState, str]:
    view = await store.run(run_id)
    assert view is not None
    return view.state, view.detail


WAITS_FOR_GROUP = (JobState.BLOCKED, Reason.CONCURRENCY_GROUP)
WAITS = (JobState.WAITING, Reason.PLANNED)


class TestGroupsOfRuns:
    async def test_the_next_goes_on_when_the_whole_run_before_it_has_ended(self, store: JobStore) -> None:
        first = await grouped_run(
            store, job("true", name="build"), job("true", name="ship", needs=("build",))
        )
        second = await grouped_run(store)
        assert await states(store, second) == [WAITS_FOR_GROUP]
        (build,) = await claimed(store)
        await store.finish(build.key, SUCCEEDED)
        (ship,) = await claimed(store)
        assert ship.run_id == first
        assert await states(store, second) == [WAITS_FOR_GROUP]
        await store.finish(ship.key, SUCCEEDED)
        assert [claim.run_id for claim in await claimed(store)] == [second]

    async def test_it_waits_in_the_order_in_which_requests_came(self, store: JobStore) -> None:
        runs = [await grouped_run(store) for _ in range(4)]
        for run_id in runs:
            (claim,) = await claimed(store)
            assert claim.run_id == run_id
            await store.finish(claim.key, FAILED)

    async def test_a_newer_one_that_cancels_waits_for_the_end_of_what_it_cancels(
        self, store: JobStore
    ) -> None:
        first = await grouped_run(store)
        (running,) = await claimed(store)
        second = await grouped_run(store)
        third = await grouped_run(store, mode=GroupMode.CANCEL)
        assert await run_of(store, second) == (RunState.CANCELLED, f"superseded by {third}")
        assert running.key in (await store.renew(WORKER, [running.key])).cancelled
        assert await claimed(store) == ()
        await store.finish(running.key, CANCELLED)
        assert await run_of(store, first) == (RunState.CANCELLED, f"superseded by {third}")
        assert await states(store, first) == [(JobState.CANCELLED, Reason.SUPERSEDED)]
        assert [claim.run_id for claim in await claimed(store)] == [third]

    async def test_an_older_request_that_comes_late_does_not_end_a_newer_one(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        newer = await grouped_run(store, mode=GroupMode.CANCEL, request=job_request(**at(100.0, clock)))
        older = await grouped_run(store, mode=GroupMode.CANCEL, request=job_request(**at(50.0, clock)))
        assert await run_of(store, older) == (RunState.CANCELLED, f"superseded by {newer}")
        assert await states(store, newer) == [WAITS]

    async def test_groups_of_two_repositories_are_apart(self, store: JobStore) -> None:
        await grouped_run(store, request=from_repository("acme/harbour"))
        other = await grouped_run(store, request=from_repository("reef/tide"))
        assert await states(store, other) == [WAITS]

    async def test_a_strangers_group_delays_and_cancels_no_other(self, store: JobStore) -> None:
        fork = {"trusted": False, "change_number": 7, "event": "change_request"}
        stranger = await grouped_run(store, request=job_request(**fork))
        own_run = await grouped_run(store)
        await grouped_run(store, mode=GroupMode.CANCEL, request=job_request(**{**fork, "change_number": 8}))
        assert await states(store, stranger) == [WAITS]
        assert await states(store, own_run) == [WAITS]

    async def test_a_cancelled_one_makes_room(self, store: JobStore) -> None:
        first = await grouped_run(store)
        second = await grouped_run(store)
        await store.cancel_run(first)
        assert await states(store, second) == [WAITS]

    async def test_one_that_is_cancelled_while_it_waits_leaves_the_line(self, store: JobStore) -> None:
        first, second, third = [await grouped_run(store) for _ in range(3)]
        await store.cancel_run(second)
        await store.cancel_run(first)
        assert await states(store, third) == [WAITS]

    async def test_one_whose_worker_is_lost_keeps_it(self, store: JobStore, clock: ManualClock) -> None:
        first = await grouped_run(store)
        second = await grouped_run(store)
        await claimed(store)
        clock.forward(LEASE + 1)
        await store.rescue()
        assert await states(store, second) == [WAITS_FOR_GROUP]
        clock.forward(600)
        assert [claim.run_id for claim in await claimed(store)] == [first]

    async def test_a_wait_for_a_group_has_a_status(self, store: JobStore) -> None:
        await grouped_run(store)
        second = await grouped_run(store)
        (*_, last) = [status for status in await outbox_statuses(store) if status.run_id == second]
        assert (last.state, last.reason, last.description) == (
            "blocked",
            "concurrency_group",
            "Waits for its concurrency group",
        )


class TestGroupsOfJobs:
    async def test_one_of_a_group_runs_and_others_of_its_run_are_not_held_up(self, store: JobStore) -> None:
        specs = (job("true", name="lint"), job("true", name="ship", concurrency=in_group()))
        first = await planned(store, *specs)
        second = await planned(store, *specs)
        claims = await claimed(store)
        assert {(claim.run_id, claim.spec.name) for claim in claims} == {
            (first, "lint"),
            (first, "ship"),
            (second, "lint"),
        }
        (ship,) = [claim for claim in claims if claim.spec.name == "ship"]
        await store.finish(ship.key, FAILED)
        assert [(claim.run_id, claim.spec.name) for claim in await claimed(store)] == [(second, "ship")]

    async def test_a_job_asks_for_it_once_its_needs_are_met(self, store: JobStore) -> None:
        specs = (
            job("true", name="build"),
            job("true", name="ship", needs=("build",), concurrency=in_group()),
        )
        first = await planned(store, *specs)
        (build,) = await claimed(store)
        second = await planned(store, job("true", name="ship", concurrency=in_group()))
        # The first has the older request, but does not ask yet.
        (ship,) = await claimed(store)
        assert ship.run_id == second
        await store.finish(build.key, SUCCEEDED)
        assert (await states(store, first))[1] == WAITS_FOR_GROUP
        await store.finish(ship.key, SUCCEEDED)
        assert (await states(store, first))[1] == (JobState.WAITING, Reason.NEEDS_MET)

    async def test_jobs_of_one_run_follow_each_other_also_when_they_cancel(self, store: JobStore) -> None:
        concurrency = in_group(GroupMode.CANCEL)
        await planned(
            store, *(job("true", name=f"shard-{number}", concurrency=concurrency) for number in range(3))
        )
        for number in range(3):
            (claim,) = await claimed(store)
            assert claim.spec.name == f"shard-{number}"
            await store.finish(claim.key, SUCCEEDED)

    async def test_what_is_tried_again_keeps_it(self, store: JobStore, clock: ManualClock) -> None:
        spec = job("true", name="ship", concurrency=in_group())
        first = await planned(store, spec)
        second = await planned(store, spec)
        (claim,) = await claimed(store)
        await store.finish(claim.key, CHECKOUT_ERRORED)
        assert await states(store, second) == [WAITS_FOR_GROUP]
        clock.forward(600)
        assert [claim.run_id for claim in await claimed(store)] == [first]

    async def test_a_job_that_is_skipped_never_held_it(self, store: JobStore) -> None:
        first = await planned(
            store,
            job("true", name="build"),
            job("true", name="ship", needs=("build",), concurrency=in_group()),
        )
        (build,) = await claimed(store)
        await store.finish(build.key, FAILED)
        assert (await states(store, first))[1] == (JobState.SKIPPED, Reason.NEEDS_FAILED)
        other = await planned(store, job("true", name="ship", concurrency=in_group()))
        assert await states(store, other) == [WAITS]

    async def test_a_group_of_runs_and_one_of_jobs_are_two(self, store: JobStore) -> None:
        """A run and its own job have the same group: neither waits for the other."""
        await grouped_run(store, job("true", name="ship", concurrency=in_group()))
        other = await grouped_run(store, job("true", name="ship", concurrency=in_group()))
        (claim,) = await claimed(store)
        await store.finish(claim.key, SUCCEEDED)
        assert [each.run_id for each in await claimed(store)] == [other]

    async def test_many_who_end_and_ask_at_once_never_run_two(self, opened: OpenStore) -> None:
        async with opened() as store, opened() as other:
            spec = job("true", name="ship", concurrency=in_group())
            for _ in range(6):
                await planned(store, spec)
            for _ in range(6):
                claims = [*await claimed(store), *await claimed(other, worker="worker-b")]
                assert len(claims) == 1
                await asyncio.gather(
                    store.finish(claims[0].key, SUCCEEDED),
                    other.finish(claims[0].key, SUCCEEDED),
                    store.rescue(),
                    other.rescue(),
                )
            assert await claimed(store) == ()


BRANCH = "refs/heads/spring"
_COMMITS = itertools.count(1)


def at(seconds_ago: float, clock: ManualClock) -> dict[str, Any]:
    """The request was made so long ago; 100 is newer than 50, up to now."""
    moment = datetime.fromtimestamp(clock.now - 1000.0 + seconds_ago, UTC)
    return {"submitted_at": format_timestamp(moment)}


def push(**changes: Any) -> JobRequestV1:
    return job_request(**{"ref": BRANCH, "commit_sha": f"{next(_COMMITS):040x}", **changes})


async def pushed(store: JobStore, *specs: JobSpec, supersede: bool | None = None, **changes: Any) -> str:
    """The id of the planned run of a push."""
    run_id = await admitted(store, push(**changes))
    assert await store.planned(
        await planning_task(store), specs or (job("true"),), RunSpec(supersede=supersede)
    )
    return run_id


class TestSupersede:
    async def test_a_newer_push_ends_the_older_run_that_waits(self, store: JobStore) -> None:
        older = await pushed(store)
        newer = await pushed(store)
        assert await run_of(store, older) == (RunState.CANCELLED, f"superseded by {newer}")
        assert await states(store, older) == [(JobState.CANCELLED, Reason.SUPERSEDED)]
        assert await states(store, newer) == [WAITS]
        ends = [
            status
            for status in await outbox_statuses(store)
            if status.run_id == older and status.job_id is None
        ]
        assert (ends[-1].state, ends[-1].reason, ends[-1].description) == (
            "cancelled",
            "superseded",
            f"Cancelled: superseded by {newer}",
        )

    async def test_a_newer_push_cancels_the_one_that_runs(self, store: JobStore) -> None:
        older = await pushed(store, job("true", name="build"), job("true", name="ship", needs=("build",)))
        (claim,) = await claimed(store)
        newer = await pushed(store)
        assert claim.key in (await store.renew(WORKER, [claim.key])).cancelled
        await store.finish(claim.key, CANCELLED)
        assert await states(store, older) == [(JobState.CANCELLED, Reason.SUPERSEDED)] * 2
        view = await store.job(claim.key.job_id)
        assert view is not None
        assert view.detail == f"superseded by {newer}"

    @pytest.mark.parametrize(
        ("rule", "begun", "ended"),
        [
            (SupersedeRule.OFF, False, False),
            (SupersedeRule.WAITING, False, True),
            (SupersedeRule.WAITING, True, False),
        ],
        ids=["off", "waiting, and it waits", "waiting, and it runs"],
    )
    async def test_the_operator_says_which(
        self, opened: OpenStore, rule: SupersedeRule, begun: bool, ended: bool
    ) -> None:
        async with opened(supersede=rule) as store:
            older = await pushed(store)
            if begun:
                (claim,) = await claimed(store)
            await pushed(store)
            state, _ = await run_of(store, older)
            assert (state is RunState.CANCELLED) is ended
            if begun:
                assert not (await store.renew(WORKER, [claim.key])).cancelled

    @pytest.mark.parametrize(
        ("ref", "supersede", "ended"),
        [
            ("refs/heads/main", None, False),
            ("refs/heads/main", True, True),
            (BRANCH, False, False),
            ("refs/tags/v1", None, False),
        ],
        ids=["the default branch", "the default branch that asks for it", "one that refuses", "a tag"],
    )
    async def test_branch_and_workflow_say_whether(
        self, store: JobStore, ref: str, supersede: bool | None, ended: bool
    ) -> None:
        older = await pushed(store, ref=ref, supersede=supersede)
        await pushed(store, ref=ref, supersede=supersede)
        state, _ = await run_of(store, older)
        assert (state is RunState.CANCELLED) is ended

    async def test_another_branch_is_another_matter(self, store: JobStore) -> None:
        older = await pushed(store)
        await pushed(store, ref="refs/heads/autumn")
        assert await states(store, older) == [WAITS]

    async def test_an_older_push_that_comes_late_makes_way_itself(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        newer = await pushed(store, **at(100.0, clock))
        late = await pushed(store, **at(50.0, clock))
        assert await run_of(store, late) == (RunState.CANCELLED, f"superseded by {newer}")
        assert await states(store, newer) == [WAITS]

    async def test_a_late_push_is_known_by_what_came_after_it(self, store: JobStore) -> None:
        """Two webhooks that overtook each other on their way to us."""
        newer = await pushed(store, commit_sha="b" * 40, before_sha="a" * 40)
        late = await pushed(store, commit_sha="a" * 40)
        assert await run_of(store, late) == (RunState.CANCELLED, f"superseded by {newer}")

    async def test_a_rerun_ends_no_run(self, store: JobStore) -> None:
        older = await pushed(store)
        newer = await pushed(store)
        again = await store.rerun(older)
        assert again is not None
        assert await store.planned(await planning_task(store), [job("true")])
        assert await states(store, newer) == [WAITS]
        assert await states(store, again.run_id) == [WAITS]

    async def test_one_that_has_ended_is_left_alone(self, store: JobStore) -> None:
        older = await pushed(store)
        (claim,) = await claimed(store)
        await store.finish(claim.key, FAILED)
        await pushed(store)
        assert await run_of(store, older) == (RunState.FAILED, "")

    async def test_a_superseded_push_costs_its_repository_no_start_tag(self, store: JobStore) -> None:
        await many(store, "acme/harbour", 30)
        for _ in range(5):
            last = await pushed(store, repo_full_name="reef/tide")
        (claim,) = await one_at_a_time(store, 1)
        assert claim.run_id == last

    async def test_of_many_planned_at_once_the_newest_is_left(self, opened: OpenStore) -> None:
        async with opened() as store, opened() as other:
            for _ in range(8):
                await admitted(store, push())
            tasks = await store.claim_planning(WORKER, 8)
            await asyncio.gather(
                *(
                    each.planned(task, [job("true")])
                    for each, task in zip([store, other] * 4, reversed(tasks), strict=True)
                )
            )
            left = [task.run_id for task in tasks if await states(store, task.run_id) == [WAITS]]
            assert left == [tasks[-1].run_id]


async def test_a_job_of_a_group_that_was_claimed_is_what_its_state_says(store: JobStore) -> None:
    run_id = await grouped_run(store)
    (claim,) = await claimed(store)
    assert await state_of(store, claim.key.job_id) == (JobState.RUNNING, Reason.CLAIMED)
    assert await run_of(store, run_id) == (RunState.RUNNING, "")
