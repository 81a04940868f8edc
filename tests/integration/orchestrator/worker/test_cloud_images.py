"""Jobs in VMs of an image for clouds, whose cloud-init starts our agent."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB
from tests.servers.cloud_image import cloud_image, why_no_cloud_image
from tests.vm_jobs import VmJobs, vm_jobs

CLOUD_IMAGE = os.environ.get("SOLSTICE_TEST_CLOUD_IMAGE") == "1"
MEMORY = 512 * MIB
START_SECONDS = 900.0
"""For systemd with simulated processors, on a busy machine."""
FACTS = """
cat hello.txt; pwd; id -u; echo "shell ${BASH_VERSION%%.*}"; echo "process $(cat /proc/1/cmdline | tr '\\0' ' ')"
echo "interfaces $(ls /sys/class/net | tr '\\n' ' ')"
cloud-id; grep ' / ' /proc/mounts; cat /proc/sys/kernel/hostname
test ! -e /etc/changed; touch /etc/changed; sync
(sleep 1000 &)
"""
LEFT = "echo left $(grep -l sleep /proc/[0-9]*/comm | wc -l)"
ENDS_VM = "echo last words; sleep 1; echo o >/proc/sysrq-trigger; sleep 1000"


@pytest.fixture(scope="module")
def image() -> Path:
    # The image takes minutes to make, and minutes to boot: too long for each run of the tests.
    if not CLOUD_IMAGE:
        pytest.skip("not asked for: SOLSTICE_TEST_CLOUD_IMAGE=1 asks for it")
    # It is made of Debian's packages, which takes root and a Debian.
    if missing := why_no_cloud_image():
        pytest.skip(f"not asked for: there is no image, since {missing}")
    return cloud_image()


@pytest.fixture
async def jobs(image: Path, tmp_path: Path) -> AsyncIterator[VmJobs]:
    async with vm_jobs(image, tmp_path, memory_bytes=MEMORY, start_seconds=START_SECONDS) as opened:
        yield opened


@pytest.mark.timeout(2 * START_SECONDS)
async def test_cloud_init_starts_the_agent_and_a_job_changes_no_image_and_can_end_its_vm(
    jobs: VmJobs, image: Path
) -> None:
    # One boot for all of it: each takes minutes.
    disk = image / "disk.qcow2"
    before = hashlib.sha256(disk.read_bytes()).digest()
    outcome = await jobs.run(FACTS, LEFT, ENDS_VM, timeout_seconds=START_SECONDS)
    print(jobs.text)  # noqa: T201  for a reader of a run with -s
    print(f"ready after {outcome.provisioning_seconds} s")  # noqa: T201  as above
    lines = jobs.text.splitlines()
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED), outcome
    assert {"hello", "/workspace", "0", "shell 5", "interfaces lo ", "nocloud", "ci", "left 1"} <= set(lines)
    assert hashlib.sha256(disk.read_bytes()).digest() == before
    assert (outcome.step, "the job ended its own VM" in outcome.detail) == ("step 3", True), outcome
    assert "last words" in lines


@pytest.mark.timeout(2 * START_SECONDS)
async def test_a_job_beside_an_init_system_is_asked_to_end_alone(jobs: VmJobs) -> None:
    stop = asyncio.Event()
    step = "trap 'echo ended; exit 1' TERM; echo begun; while :; do sleep 0.1; done"
    running = asyncio.ensure_future(jobs.run(step, stop=stop, timeout_seconds=START_SECONDS))
    await jobs.wrote("begun\n")
    stop.set()
    outcome = await running
    assert (outcome.state, outcome.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert "ended\n" in jobs.text
