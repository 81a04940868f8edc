"""Orchestrators with more work than they may start keep their limits, by the store's clock."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.gated_jobs import GatedJob, all_ended, publish_requests, wait_for_jobs
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.postgresql import ScratchDatabase
from tests.stores import planned

WAIT_SECONDS = 90
RATE, BURST, SECONDS = 10, 20, 10
"""Tokens of two seconds: a process that waits this long for the processor loses no start."""


async def starts(store: JobStore, run_id: str, least: int) -> list[float]:
    """When jobs started, oldest first, once so many have."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            changed.clear()
            views = await store.jobs(run_id=run_id, limit=1000)
            found = sorted(view.started_at for view in views if view.started_at is not None)
            if len(found) >= least:
                return found
            await changed.wait()


async def refuses(store: JobStore, worker_id: str, resource: Resource | None) -> None:
    """Wait until the store has this refusal, which the worker stores after logging it."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            changed.clear()
            worker = await store.worker(worker_id)
            if worker is not None and worker.refuses is resource:
                return
            await changed.wait()


@pytest.mark.alone
async def test_ten_starts_a_second_are_ten_a_second_over_two_orchestrators(
    tmp_path: Path, store_database: ScratchDatabase
) -> None:
    # Both kinds of store at once: a limited rate leaves the processors idle.
    files = {kind: SharedFiles(directory=tmp_path / kind) for kind in ("sqlite", "postgresql")}
    urls = {"sqlite": files["sqlite"].database_url, "postgresql": store_database.url}
    jobs = [job("say hello", name=f"job-{number}") for number in range(250)]
    async with AsyncExitStack() as stack:
        planned_runs = []
        for kind, shared_files in files.items():
            shared_files.directory.mkdir()
            store = await stack.enter_async_context(open_store(urls[kind]))
            planned_runs.append((kind, store, await planned(store, *jobs, planner="planner")))
            settings = {
                "DATABASE_URL": urls[kind],
                "EXECUTOR": "scripted",
                "CAPACITY_MAP": "linux=50",
                "LABEL_START_RATES": f"linux={RATE}/s:{BURST}",
            }
            for name in ("quay", "pier"):
                stack.enter_context(orchestrator(shared_files, WORKER_NAME=name, **settings))
        for kind, store, run_id in planned_runs:
            found = await starts(store, run_id, RATE * SECONDS + 2 * BURST)
            within = sum(at < found[0] + SECONDS for at in found)
            assert RATE * SECONDS - BURST <= within <= RATE * SECONDS + BURST, kind
            for first, begin in enumerate(found):
                for last in range(first, len(found)):
                    assert last - first + 1 <= RATE * (found[last] - begin) + BURST + 1e-6


async def test_intake_leaves_in_the_queue_what_is_too_much_and_takes_it_when_there_is_room(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    gated_job = GatedJob(tmp_path)
    with orchestrator(shared_files, MAX_BACKLOG="3", AMQP_PREFETCH="1", CAPACITY_MAP="linux=1") as process:
        await publish_requests(shared_files, gated_job, 20)
        assert (await asyncio.to_thread(process.logged, "intake.full"))["most"] == 3
        async with httpx2.AsyncClient(base_url=process.url) as client:
            assert "solstice_intake_paused 1.0" in (await client.get("/metrics")).text
        assert len((await store.runs(limit=100)).runs) < 20
        gated_job.open_gate()
        assert await asyncio.to_thread(process.logged, "intake.has_room")
        views = await wait_for_jobs(store, lambda views: len(views) == 20 and all_ended(views))
        assert {view.state for view in views} == {JobState.SUCCEEDED}


@NEEDS_DISKS
async def test_a_worker_whose_disk_is_full_says_so_and_starts_again_when_there_is_room(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    # Before the orchestrator is there, which would plan it by itself.
    await planned(store, job("true"), planner="planner")
    (view,) = await store.jobs(limit=9)
    with mounted_disk(tmp_path / "disk", mib=32) as disk:
        junk = disk / "junk"
        junk.write_bytes(b"x" * (31 * 1024 * 1024))
        with orchestrator(
            shared_files,
            WORKSPACES=str(disk / "work"),
            GOVERNOR="disk=5%",
            DISK_RESERVE_MIB="0",
            WORKER_NAME="quay",
        ) as process:
            assert (await asyncio.to_thread(process.logged, "starts.refused"))["resource"] == "disk"
            await refuses(store, process.worker_id, Resource.DISK)
            facts = await store.waiting(view.job_id)
            assert facts is not None
            why = explain(facts)
            assert why is not None
            assert (why.reason, why.resource) == (WaitReason.GOVERNOR, "disk")
            junk.unlink()
            assert (await asyncio.to_thread(process.logged, "starts.resumed"))["resource"] == "disk"
            await asyncio.to_thread(process.logged, "job.claimed")
            await refuses(store, process.worker_id, None)
