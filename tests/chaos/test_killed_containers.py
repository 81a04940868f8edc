"""Parts of running containers are killed at random moments, and nothing of them is left.

The world's failures stay the world's.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Reason
from solstice_orchestrator.processes.supervisor import descendants
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from tests.gated_jobs import Commit, all_ended, publish_requests, read_log, wait_for_jobs
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.podman import IMAGE, podman_store

KILLS = int(os.environ.get("SOLSTICE_TEST_KILLS", "4"))
"""How many parts are killed; 50 show more, in some minutes."""
SEED = 17
PARTS = ("podman", "conmon", "supervisor", "orchestrator")
SLOTS = 3
JOBS = "\n".join(
    f'job "{name}" network=none {{ image "{IMAGE}"; step run="echo begun; sleep 0.3; echo ended" }}'
    for name in ("otter", "heron", "reed", "river")
)


@pytest.mark.timeout(120 + 10 * KILLS)
async def test_no_job_fails_for_a_killed_part_of_its_container_and_nothing_is_left(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "repository")
    commit = Commit(repository, repository.commit({".solstice/workflow.kdl": JOBS}))
    rng, killed, places = random.Random(SEED), Counter[str](), set[str]()
    # A store of its own: the one that tests share does not have its podman killed.
    with ExitStack() as stack, podman_store(tmp_path / "podman" / "store", [IMAGE]) as podman:
        settings = {**podman.environment, "EXECUTOR": "podman", "CAPACITY_MAP": f"linux={SLOTS}"}
        running = stack.enter_context(orchestrator(shared_files, **settings))
        for number in range(KILLS):
            if await unfinished(store) <= SLOTS:
                await publish_requests(shared_files, commit)
            part = PARTS[number % len(PARTS)]
            await asyncio.sleep(rng.uniform(0, 0.8))
            places.update(path.name for path in shared_files.workspaces.iterdir())
            await kill(part, running, rng)
            killed[part] += 1
            if part == "orchestrator":
                running = stack.enter_context(orchestrator(shared_files, **settings))
        await wait_for_jobs(store, all_ended)
        running.terminate()
        assert await asyncio.to_thread(running.ended) == 0
        reasons = await ended_attempts(store)
        print(f"killed {dict(killed)}; attempts ended {dict(reasons)}")  # noqa: T201  for a reader of a run with -s
        assert podman.containers() == []
        assert podman.mounts() == []
        assert [group for place in places for group in groups_left(place)] == []
        assert list(shared_files.workspaces.iterdir()) == []


async def unfinished(store: JobStore) -> int:
    return sum(not job.state.final for job in await store.jobs(limit=1000))


async def ended_attempts(store: JobStore) -> Counter[str]:
    """How often attempts ended for each reason.

    Each must be right, and no job may end well twice.
    """
    reasons = Counter[str]()
    for job in await store.jobs(limit=1000):
        attempts = await store.attempts(job.job_id)
        counts = Counter(attempt.reason for attempt in attempts)
        assert set(counts) <= {Reason.COMPLETED, *INFRASTRUCTURE}, attempts
        assert counts[Reason.COMPLETED] == (job.state is JobState.SUCCEEDED)
        assert job.state in {JobState.SUCCEEDED, JobState.ERRORED}
        if job.state is JobState.SUCCEEDED:
            lines = (await read_log(store, job.job_id)).splitlines()
            assert (lines.count(b"begun"), lines.count(b"ended")) == (1, 1)
        reasons.update(counts)
    return reasons


async def kill(part: str, running: OrchestratorProcess, rng: random.Random) -> None:
    """Kill one process of that kind, once there is one."""
    if part == "orchestrator":
        running.kill()
        return
    below = running.process.pid
    while True:
        await wait_until(lambda: processes(part, below))
        with suppress(IndexError, ProcessLookupError):
            # It may have ended by now: then another one is chosen.
            os.kill(rng.choice(processes(part, below)), signal.SIGKILL)
            return


def processes(part: str, ancestor: int) -> list[int]:
    """The processes of that kind below an orchestrator."""
    below = sorted(descendants(ancestor))
    if part != "supervisor":
        return [pid for pid in below if content(pid, "comm").strip() == part.encode()]
    # The parents of what runs steps in containers; without its own, that has the orchestrator for one.
    steps = [pid for pid in below if b"container_step.py" in content(pid, "cmdline")]
    stats = [content(pid, "stat").rpartition(b")")[2].split() for pid in steps]
    return [int(words[1]) for words in stats if words and int(words[1]) != ancestor]


def content(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
