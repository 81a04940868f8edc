"""Every store removes old finished runs with everything that belongs to them, and nothing else."""

import asyncio

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.reports.values import JobReport
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.artifact_records import ArtifactRecord
from solstice_orchestrator.store.protocol import (
    LOG_CHUNKS_PER_PURGE,
    Admitted,
    Duplicate,
    Purged,
)
from solstice_orchestrator.store.records.report_records import ReportRecord
from tests.builders import job, job_request
from tests.stores import (
    SUCCEEDED,
    ManualClock,
    OpenStore,
    admitted,
    chunk,
    claimed,
    planned,
    running,
)

DAY = 86_400.0
ARTIFACT = ArtifactRecord(name="dist", digest="ab" * 32, size=1, files=1, retention_seconds=1e9)

REPORT = ReportRecord(report=JobReport(), commit_sha="ab" * 20, trusted=True)


async def finished(store: JobStore, request: JobRequestV1 | None = None) -> str:
    """A run that has ended, with a log."""
    run_id = await planned(
        store, job("true", name="build"), job("true", name="test", needs=("build",)), request=request
    )
    for _ in range(2):
        (claim,) = await claimed(store)
        assert await store.append_log(claim.key, [chunk(1), chunk(2)])
        assert await store.append_log(claim.key, [chunk(1)], "db")
        assert await store.record_artifact(claim.key, ARTIFACT, 0)
        assert await store.record_report(claim.key.job_id, claim.key.number, REPORT)
        assert await store.finish(claim.key, SUCCEEDED)
    return run_id


async def purged(store: JobStore, older_than_seconds: float, limit: int = 100) -> int:
    runs, more = 0, True
    while more:
        step = await store.purge(older_than_seconds, limit)
        assert step.runs <= limit
        runs, more = runs + step.runs, step.more
    return runs


async def test_a_run_that_ended_long_enough_ago_is_gone_with_all_that_was_its(
    store: JobStore, clock: ManualClock
) -> None:
    request = job_request()
    run_id = await finished(store, request)
    jobs = await store.jobs(run_id=run_id, limit=10)
    clock.forward(2 * DAY)
    assert await store.purgeable(DAY) == 1
    assert await purged(store, DAY) == 1
    assert await store.purgeable(DAY) == 0
    assert await store.run(run_id) is None
    assert await store.run_of_request(request.request_id) is None
    assert (await store.runs(limit=10)).runs == []
    assert await store.jobs(limit=10) == []
    for view in jobs:
        assert await store.job(view.job_id) is None
        assert await store.attempts(view.job_id) == []
        assert await store.log(view.job_id) is None
        assert await store.logged_services(view.job_id, attempt=1) == []
        assert await store.reports(job_id=view.job_id) == []
    assert await store.recorded_digests([ARTIFACT.digest]) == frozenset()


async def test_what_is_younger_or_not_finished_stays(store: JobStore, clock: ManualClock) -> None:
    waits = await planned(store, job("true", runs_on="nowhere"))
    ends_late = await planned(store, job("true"))
    (claim,) = await claimed(store)
    planning = await admitted(store)
    clock.forward(2 * DAY)
    assert await store.finish(claim.key, SUCCEEDED)
    young = await finished(store)
    assert await store.purgeable(DAY) == 0
    assert await purged(store, DAY) == 0
    assert {run.run_id for run in (await store.runs(limit=10)).runs} == {
        waits,
        ends_late,
        planning,
        young,
    }


async def test_it_goes_in_small_steps_the_oldest_first(store: JobStore, clock: ManualClock) -> None:
    runs = [await finished(store) for _ in range(5)]
    clock.forward(2 * DAY)
    step = await store.purge(DAY, 2)
    assert (step.runs, step.more) == (2, True)
    assert [run.run_id for run in (await store.runs(limit=10)).runs] == runs[:1:-1]
    assert await purged(store, DAY, 2) == 3


async def test_a_long_log_goes_in_steps_of_its_own(store: JobStore, clock: ManualClock) -> None:
    claim = await running(store)
    for start in range(1, 2 * LOG_CHUNKS_PER_PURGE + 1, 500):
        assert await store.append_log(claim.key, [chunk(start + one) for one in range(500)])
    await store.finish(claim.key, SUCCEEDED)
    clock.forward(2 * DAY)
    steps: list[Purged] = []
    while not steps or steps[-1].more:
        steps.append(await store.purge(DAY, 10))
    assert [step.runs for step in steps] == [0, 0, 1]


async def test_pending_statuses_are_still_published(store: JobStore, clock: ManualClock) -> None:
    await finished(store)
    clock.forward(2 * DAY)
    before = [row.number for row in await store.outbox(1000)]
    assert await purged(store, DAY) == 1
    assert before
    assert [row.number for row in await store.outbox(1000)] == before


async def test_a_request_that_was_forgotten_is_a_new_run_when_it_comes_again(
    store: JobStore, clock: ManualClock
) -> None:
    first = job_request(idempotency_key="push-1")
    same_push = job_request(idempotency_key="push-1")
    run_id = await finished(store, first)
    assert await store.admit([same_push]) == [Duplicate(run_id=run_id)]
    clock.forward(2 * DAY)
    assert await store.admit([first]) == [Duplicate(run_id=run_id)]
    assert await purged(store, DAY) == 1
    (again,) = await store.admit([same_push])
    assert isinstance(again, Admitted)
    assert await store.admit([first]) == [Duplicate(run_id=again.run_id)]


async def test_a_rerun_outlives_the_run_it_repeats(store: JobStore, clock: ManualClock) -> None:
    run_id = await finished(store)
    clock.forward(2 * DAY)
    again = await store.rerun(run_id)
    assert again is not None
    assert await purged(store, DAY) == 1
    view = await store.run(again.run_id)
    assert view is not None
    assert view.rerun_of == run_id


async def test_two_that_purge_at_once_remove_each_run_once(
    store: JobStore, opened: OpenStore, clock: ManualClock
) -> None:
    for _ in range(12):
        await finished(store)
    clock.forward(2 * DAY)
    async with opened() as other:
        removed = await asyncio.gather(
            purged(store, DAY, 1),
            purged(other, DAY, 1),
            purged(store, DAY, 3),
        )
    assert sum(removed) == 12
