"""A job's artifacts are stored after its steps, or the right party is named."""

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import ArtifactSpec, Outcome, Reason
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping, ArtifactLimits
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.executors.protocol import stored_nowhere
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.integration.orchestrator.worker import artifact_keeper

MOMENTS = 30
DIST = ArtifactSpec(name="dist", path="dist/**")


@pytest.fixture
def keeping(tmp_path: Path) -> ArtifactKeeping:
    directory = ArtifactArchives(tmp_path / "artifacts")
    directory.prepare()
    return ArtifactKeeping(directory=directory)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ArtifactAnswer.FULL, "all artifacts together have 7 MiB (ARTIFACT_DISK_MIB)"),
        (StoreUnavailable("the store", "gone"), "it could not be recorded"),
    ],
)
async def test_what_cannot_be_recorded_is_not_the_fault_of_the_job(
    keeping: ArtifactKeeping, tmp_path: Path, answer: ArtifactAnswer | Exception, words: str
) -> None:
    async def record(_artifact: ArtifactRecord, _most_bytes: int) -> ArtifactAnswer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    (tmp_path / "source/dist").mkdir(parents=True)
    (tmp_path / "source/dist/a").touch()
    limited = replace(keeping, limits=ArtifactLimits(all_bytes=7 * 1024**2))
    outcome = await limited.keep(WorkspaceFiles(tmp_path / "source"), DIST, record, asyncio.Event())
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_NOT_STORED)
    assert words in outcome.detail


@NEEDS_DISKS
async def test_a_full_disk_of_the_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "source/dist").mkdir(parents=True)
    (tmp_path / "source/dist/a").write_bytes(bytes(3 * 1024**2))
    with mounted_disk(tmp_path / "small", mib=2) as small:
        directory = ArtifactArchives(small / "artifacts")
        directory.prepare()
        # As if others filled the disk after the room was looked at.
        limits = ArtifactLimits(reserve_bytes=-(1024**3))
        keeping = ArtifactKeeping(directory=directory, limits=limits)
        outcome = await keeping.keep(
            WorkspaceFiles(tmp_path / "source"), DIST, stored_nowhere, asyncio.Event()
        )
        assert isinstance(outcome, Outcome)
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_NOT_STORED)
        assert "No space left on device" in outcome.detail
        assert list((small / "artifacts/incoming").iterdir()) == []


async def test_a_job_that_is_cancelled_meanwhile_ends_as_cancelled(
    keeping: ArtifactKeeping, tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/a").touch()
    stop = asyncio.Event()
    stop.set()
    outcome = await keeping.keep(WorkspaceFiles(tmp_path), DIST, stored_nowhere, stop)
    assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.CANCEL_REQUESTED


async def test_a_directory_that_cannot_be_made_is_named(keeping: ArtifactKeeping, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "file").touch()
    unusable = replace(keeping, directory=ArtifactArchives(tmp_path / "file" / "artifacts"))
    outcome = await unusable.keep(
        WorkspaceFiles(tmp_path), ArtifactSpec(name="a", path="a"), stored_nowhere, asyncio.Event()
    )
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_NOT_STORED)
    assert "ARTIFACT_DIRECTORY cannot be used" in outcome.detail


async def test_a_time_longer_than_that_of_runs_is_cut(keeping: ArtifactKeeping, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    limited = replace(keeping, limits=ArtifactLimits(longest_seconds=50.0))
    spec = ArtifactSpec(name="a", path="a", retention_seconds=60.0)
    record = await limited.keep(WorkspaceFiles(tmp_path), spec, stored_nowhere, asyncio.Event())
    assert isinstance(record, ArtifactRecord)
    assert record.retention_seconds == 50.0


def test_a_killed_orchestrator_leaves_no_part_of_an_archive_under_a_digest(tmp_path: Path) -> None:
    """Killed at many moments while it keeps artifacts of a workspace and a VM."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/a").write_bytes(random.Random(7).randbytes(1024**2))
    archives, incoming = tmp_path / "artifacts/sha256", tmp_path / "artifacts/incoming"
    whole = 0
    with subprocess.Popen(
        [sys.executable, artifact_keeper.__file__, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        for number in range(MOMENTS):
            keeper.stdin.write("again\n")
            keeper.stdin.flush()
            pid = int(keeper.stdout.readline())
            before = len(list(incoming.iterdir()))
            while len(list(incoming.iterdir())) == before:
                time.sleep(0.0005)
            time.sleep(0.003 * (number % 6))
            if number == MOMENTS - 1:
                while not list(archives.iterdir()):
                    time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
        keeper.stdin.close()
        keeper.wait()
    for folder in archives.iterdir():
        for file in folder.iterdir():
            assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
            whole += 1
    assert whole
    # Otherwise none was killed in the midst of one.
    assert list(incoming.iterdir())
