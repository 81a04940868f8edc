"""Parts of running VMs are killed at random moments, and nothing of them is left.

The world's failures stay the world's. Jobs of another label run as processes beside them.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.processes.supervisor import descendants
from solstice_orchestrator.store import open_store
from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from tests.chaos.test_killed_containers import content, ended_attempts, unfinished
from tests.gated_jobs import Commit, all_ended, publish_requests, wait_for_jobs
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.vm_image import vm_image, why_no_vm
from tests.vm_jobs import vm_pids

KILLS = int(os.environ.get("SOLSTICE_TEST_KILLS", "4"))
"""How many parts are killed; 50 show more, in some minutes."""
SEED = 17
PARTS = ("qemu-system-x86_64", "vm_host.py", "supervisor", "orchestrator")
SLOTS = 2
STEP = "echo begun; sleep 0.3; echo ended"
JOBS = f"""
job "otter" runs-on=vm {{ step run="{STEP}" }}
job "heron" runs-on=vm {{ step run="{STEP}" }}
job "reed" {{ step run="{STEP}" }}
"""


@pytest.mark.timeout(240 + 20 * KILLS)
async def test_no_job_fails_for_a_killed_part_of_its_vm_and_nothing_is_left(tmp_path: Path) -> None:
    # On Debian as root QEMU is installed, so that CI runs this; elsewhere a machine may have none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    shared_files = SharedFiles(directory=tmp_path)
    repository = Repository(tmp_path / "repository")
    commit = Commit(repository, repository.commit({".solstice/workflow.kdl": JOBS}))
    settings = {
        "EXECUTOR_MAP": "vm=qemu",
        "VM_IMAGES": f"vm={vm_image(tmp_path / 'image')}",
        "VM_ACCELERATION": "tcg",
        "VM_MEMORY_MIB": "128",
        "VM_CPUS": "1",
        "CAPACITY_MAP": f"linux=1,vm={SLOTS}",
        "PATH": os.environ["PATH"],
    }
    rng, killed, places = random.Random(SEED), Counter[str](), set[str]()
    async with open_store(shared_files.database_url) as store:
        with ExitStack() as stack:
            running = stack.enter_context(orchestrator(shared_files, **settings))
            for number in range(KILLS):
                if await unfinished(store) <= SLOTS:
                    await publish_requests(shared_files, commit)
                part = PARTS[number % len(PARTS)]
                await asyncio.sleep(rng.uniform(0, 3.0))
                places.update(path.name for path in shared_files.workspaces.iterdir())
                await kill(part, running, rng)
                killed[part] += 1
                if part == "orchestrator":
                    running = stack.enter_context(orchestrator(shared_files, **settings))
            await wait_for_jobs(store, all_ended)
            running.terminate()
            assert await asyncio.to_thread(running.ended) == 0
        reasons = await ended_attempts(store)
        for job in await store.jobs(limit=1000):
            (*_, last) = await store.attempts(job.job_id)
            if job.state is JobState.SUCCEEDED:
                assert (last.provisioning_seconds is None) == (job.runs_on == "linux")
    print(f"killed {dict(killed)}; attempts ended {dict(reasons)}")  # noqa: T201  for a reader of a run with -s
    assert vm_pids(tmp_path) == []
    assert [group for place in places for group in groups_left(place)] == []
    assert list(shared_files.workspaces.iterdir()) == []


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


def processes(part: str, ancestor: int) -> Sequence[int]:
    """The processes of that kind below an orchestrator."""
    below = sorted(descendants(ancestor))
    hosts = [pid for pid in below if b"vm_host.py" in content(pid, "cmdline")]
    if part == "vm_host.py":
        return hosts
    if part == "supervisor":
        stats = [content(pid, "stat").rpartition(b")")[2].split() for pid in hosts]
        return [int(words[1]) for words in stats if words and int(words[1]) not in {ancestor, *hosts}]
    return [pid for pid in below if content(pid, "cmdline").startswith(part.encode())]
