"""Orchestrators with a full disk, and commits that cannot be checked out."""

import asyncio
import subprocess
from pathlib import Path

import httpx2

from solstice_common.broker import Message, open_broker
from solstice_common.messages.states import JobState, RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.scheduling.workers import WorkerState
from solstice_orchestrator.store import JobStore
from tests.builders import job_request
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.gated_jobs import GatedJob, all_ended, publish_requests, wait_for_jobs
from tests.repositories import GIT_ENVIRONMENT, Repository
from tests.servers.orchestrator import SharedFiles, orchestrator

WAIT_SECONDS = 90


@NEEDS_DISKS
async def test_a_worker_with_a_full_disk_spends_no_tries_while_a_healthy_one_plans(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    gated_job = GatedJob(tmp_path)
    gated_job.open_gate()
    with (
        mounted_disk(tmp_path / "disk", mib=8) as disk,
        orchestrator(
            shared_files,
            WORKSPACES=str(disk / "work"),
            GOVERNOR="off",
            DISK_RESERVE_MIB="0",
            WORKER_NAME="sick",
            RETRY_BASE_SECONDS="0",
        ) as sick,
    ):
        junk = disk / "junk"
        with junk.open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 65536)
            except OSError:
                pass
        await publish_requests(shared_files, gated_job, 5)
        # A single worker retries with a pause, and reports it everywhere.
        async with asyncio.timeout(WAIT_SECONDS), httpx2.AsyncClient(base_url=sick.url) as client:
            while True:
                ready = await client.get("/readyz")
                # At first its queues are missing.
                if ready.status_code == 503 and "worker" in ready.json()["missing"]:
                    break
                await asyncio.sleep(0.05)
            assert "its machine is sick" in ready.json()["missing"]["worker"]
            runs = (await store.runs(limit=100)).runs
            while True:
                facts = await store.planning(runs[0].run_id)
                assert facts is not None
                why = explain(facts)
                assert why is not None
                if why.reason is WaitReason.GOVERNOR:
                    break
                await asyncio.sleep(0.05)
        assert why.resource == "machine"
        assert "sick does not while its machine is sick" in why.detail
        await asyncio.sleep(6)
        assert {run.state for run in (await store.runs(limit=100)).runs} == {RunState.PLANNING}
        with orchestrator(shared_files, WORKER_NAME="well"):
            await publish_requests(shared_files, gated_job, 15)
            views = await wait_for_jobs(store, lambda views: len(views) == 20 and all_ended(views))
        assert {view.state for view in views} == {JobState.SUCCEEDED}
        assert "planning.crashed" not in {event.get("event") for event in sick.events}


def commit_with_name(repository: Repository, name: bytes, text: str) -> str:
    """Make a commit with a file of this name, which file systems may not allow."""
    repository.commit({".solstice/workflow.kdl": text})
    blob, tree = repository.git("rev-parse", "HEAD:.solstice/workflow.kdl", "HEAD^{tree}").split()
    listed = (
        repository.git("ls-tree", tree).encode() + b"\n100644 blob " + blob.encode() + b"\t" + name + b"\n"
    )
    made = subprocess.run(
        ["git", "mktree"],
        cwd=repository.path,
        env=GIT_ENVIRONMENT,
        input=listed,
        capture_output=True,
        check=True,
    )
    return repository.git("commit-tree", "-m", "names", made.stdout.decode().strip())


async def test_a_file_name_too_long_fails_its_own_jobs_at_once_and_no_worker(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    bad = Repository(tmp_path / "bad")
    workflow = "".join(f'job "job-{number}" {{ step "x" run="true"; }}\n' for number in range(6))
    sha = commit_with_name(bad, b"n" * 300, workflow)
    settings = BrokerSettings(amqp_url=shared_files.broker_url)
    route = jobs_route(settings)
    async with open_broker(shared_files.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        body = job_request(repo_url=bad.url, commit_sha=sha, ref=None).encode()
        await broker.publish(
            [Message(exchange=route.exchange, routing_key=route.routing_key, body=body, type="jobrequest.v1")]
        )
    gated_job = GatedJob(tmp_path)
    gated_job.open_gate()
    with orchestrator(shared_files, WORKER_NAME="quay"):
        views = await wait_for_jobs(store, lambda views: len(views) == 6 and all_ended(views))
        assert {(view.state, view.reason, view.attempt) for view in views} == {
            (JobState.FAILED, Reason.COMMIT_UNUSABLE, 1)
        }
        (worker,) = await store.workers()
        assert (worker.state, worker.failures_in_a_row, worker.shrunk_to) == (WorkerState.ACTIVE, 0, None)
        await publish_requests(shared_files, gated_job)
        await wait_for_jobs(store, lambda views: len(views) == 7 and all_ended(views))
