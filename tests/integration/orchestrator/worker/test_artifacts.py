"""A job's artifacts are stored after its steps, by processes and in containers."""

import asyncio
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ANY_CONTAINER, ContainerSpec
from solstice_orchestrator.domain.jobs import ArtifactSpec, Outcome, Reason
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping, ArtifactLimits
from solstice_orchestrator.worker.executors import Executor
from solstice_orchestrator.worker.executors.process import ProcessExecutor
from solstice_orchestrator.worker.executors.protocol import stored_nowhere
from tests.builders import execution, job, job_request
from tests.container_jobs import container_jobs
from tests.executor_harness import NEEDS_DISKS, mounted_disk, open_harness
from tests.integration.orchestrator.worker import artifact_keeper
from tests.repositories import Repository
from tests.servers.podman import IMAGE

MOMENTS = 30
DIST = ArtifactSpec(name="dist", path="dist/**")


@dataclass(kw_only=True)
class ArtifactJobs:
    """Runs jobs whose artifacts are recorded here."""

    executor: Executor
    container: ContainerSpec
    request: JobRequestV1
    directory: ArtifactArchives
    records: list[ArtifactRecord] = field(default_factory=list)
    output: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(self.output).decode()

    async def run(
        self, *runs: str, artifacts: tuple[ArtifactSpec, ...] = (DIST,), stop: asyncio.Event | None = None
    ) -> Outcome:
        async def record(artifact: ArtifactRecord, _most_bytes: int) -> ArtifactAnswer:
            self.records.append(artifact)
            return ArtifactAnswer.STORED

        async def log(data: bytes) -> None:
            self.output.append(data)

        spec = job(*runs, artifacts=artifacts, container=self.container)
        attempt = replace(execution(spec, self.request), record_artifact=record)
        return await self.executor.run(attempt, log, stop or asyncio.Event())

    def files_of(self, record: ArtifactRecord) -> dict[str, bytes]:
        """The files of a kept archive, whose digest and size are checked."""
        path = self.directory.find(record.digest)
        assert path is not None
        content = path.read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (record.digest, record.size)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            return {each.name: self._content(archive, each) for each in archive}

    @staticmethod
    def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        file = archive.extractfile(member)
        assert file is not None
        return file.read()


@pytest.fixture
def keeping(tmp_path: Path) -> ArtifactKeeping:
    directory = ArtifactArchives(tmp_path / "artifacts")
    directory.prepare()
    return ArtifactKeeping(directory=directory)


@pytest.fixture(params=["process", "podman"])
async def jobs(
    request: pytest.FixtureRequest, tmp_path: Path, keeping: ArtifactKeeping
) -> AsyncIterator[ArtifactJobs]:
    repository = Repository(tmp_path / "repository")
    sha = repository.commit({"hello.txt": "hello\n"})
    run_request = job_request(repo_url=repository.url, commit_sha=sha)
    if request.param == "podman":
        podman = request.getfixturevalue("podman")
        async with container_jobs(podman, tmp_path, request=run_request) as containers:
            assert isinstance(containers.executor, ProcessExecutor)
            yield ArtifactJobs(
                executor=replace(containers.executor, artifacts=keeping),
                container=ContainerSpec(image=IMAGE),
                request=run_request,
                directory=keeping.directory,
            )
    else:
        async with open_harness(tmp_path / "work", repository) as harness:
            yield ArtifactJobs(
                executor=replace(harness.executor, artifacts=keeping),
                container=ANY_CONTAINER,
                request=run_request,
                directory=keeping.directory,
            )


async def test_an_artifact_of_a_job_that_succeeded_is_kept_with_its_digest(jobs: ArtifactJobs) -> None:
    outcome = await jobs.run(
        "mkdir -p dist/bin; echo one > dist/one; read -r line < hello.txt; echo $line > dist/bin/hello.txt; echo other > other",
        artifacts=(DIST, ArtifactSpec(name="other", path="other", retention_seconds=60.0)),
    )
    assert (outcome.state, outcome.reason) == (JobState.SUCCEEDED, Reason.COMPLETED), jobs.text
    dist, other = jobs.records
    assert jobs.files_of(dist) == {"dist/bin/hello.txt": b"hello\n", "dist/one": b"one\n"}
    assert jobs.files_of(other) == {"other": b"other\n"}
    assert (dist.files, other.retention_seconds) == (2, 60.0)
    assert f"artifact dist: files: 2, bytes: {dist.size}, sha256:{dist.digest}" in jobs.text


async def test_a_job_that_hands_out_a_link_fails_for_that_and_its_log_says_which(jobs: ArtifactJobs) -> None:
    outcome = await jobs.run("mkdir dist; ln -s /etc/passwd dist/users; echo x > dist/x")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_REFUSED)
    assert outcome.detail == (
        "artifact dist: dist/users is a symbolic link, and an artifact has plain files alone"
    )
    assert outcome.detail in jobs.text
    assert jobs.records == []


async def test_a_job_that_fails_hands_nothing_out(jobs: ArtifactJobs) -> None:
    outcome = await jobs.run("mkdir dist; echo x > dist/x; exit 3")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, Reason.STEP_FAILED, 3)
    assert jobs.records == []


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
    outcome = await limited.keep(tmp_path / "source", DIST, record, asyncio.Event())
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
        outcome = await keeping.keep(tmp_path / "source", DIST, stored_nowhere, asyncio.Event())
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
    outcome = await keeping.keep(tmp_path, DIST, stored_nowhere, stop)
    assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.CANCEL_REQUESTED


async def test_a_directory_that_cannot_be_made_is_named(keeping: ArtifactKeeping, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "file").touch()
    unusable = replace(keeping, directory=ArtifactArchives(tmp_path / "file" / "artifacts"))
    outcome = await unusable.keep(tmp_path, ArtifactSpec(name="a", path="a"), stored_nowhere, asyncio.Event())
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_NOT_STORED)
    assert "ARTIFACT_DIRECTORY cannot be used" in outcome.detail


async def test_a_time_longer_than_that_of_runs_is_cut(keeping: ArtifactKeeping, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    limited = replace(keeping, limits=ArtifactLimits(longest_seconds=50.0))
    spec = ArtifactSpec(name="a", path="a", retention_seconds=60.0)
    record = await limited.keep(tmp_path, spec, stored_nowhere, asyncio.Event())
    assert isinstance(record, ArtifactRecord)
    assert record.retention_seconds == 50.0


def test_a_killed_orchestrator_leaves_no_part_of_an_archive_under_a_digest(tmp_path: Path) -> None:
    """Killed at many moments while it keeps artifacts, one after the other."""
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
