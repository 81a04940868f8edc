"""A job ends for the disk space that it needs, with every executor of processes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors import disk
from tests.container_jobs import container_jobs
from tests.executor_harness import open_harness, replace_executor
from tests.repositories import Repository

LIMIT_MIB = 8
WRITES = "head -c {size}M /dev/zero > {file}"


class Jobs(Protocol):
    """Runs jobs in the executor of the test."""

    async def run(self, *runs: str) -> Outcome: ...


@pytest.fixture(params=["process", "podman"])
async def jobs(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Jobs]:
    monkeypatch.setattr(disk, "CHECK_SECONDS", 0.05)
    watch = disk.DiskWatch(limit_bytes=LIMIT_MIB * disk.MIB)
    if request.param == "podman":
        async with container_jobs(request.getfixturevalue("podman"), tmp_path, disk=watch) as containers:
            yield containers
    else:
        async with open_harness(tmp_path / "work", Repository(tmp_path / "repository")) as harness:
            replace_executor(harness, disk=watch)
            yield harness


@pytest.mark.parametrize(
    "fills",
    [
        WRITES.format(size=LIMIT_MIB + 1, file="large"),
        WRITES.format(size=LIMIT_MIB + 1, file='"$TMPDIR/large"'),
        f"cd; for i in $(seq 20); do {WRITES.format(size=1, file='small-$i')}; done",
        f"exec 3> gone; rm gone; head -c {LIMIT_MIB + 1}M /dev/zero >&3",
    ],
    ids=["in the workspace", "in /tmp", "in the home", "in a deleted file"],
)
async def test_a_job_that_needs_more_disk_space_than_it_may_use_fails_for_that(
    jobs: Jobs, fills: str
) -> None:
    outcome = await jobs.run(f"{fills}; sleep 1000")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.OUT_OF_DISK)
    assert f"may use {LIMIT_MIB} MiB" in outcome.detail


async def test_a_job_within_its_disk_space_runs_to_its_end(jobs: Jobs) -> None:
    outcome = await jobs.run(f"{WRITES.format(size=LIMIT_MIB - 4, file='file')}; sleep 0.5")
    assert outcome.state is JobState.SUCCEEDED
