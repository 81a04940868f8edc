"""What a job needs is placed, or the right party is named."""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.handing_spec import NeededArtifact
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.store.artifact_records import ArtifactView, NeededJob, NeededJobs
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.handing import Handing
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from tests.builders import execution, job

NEEDED = NeededArtifact(job="build", name="dist", into="in")


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo("dist/a")
        member.size = 7
        tar.addfile(member, io.BytesIO(b"content"))
    return out.getvalue()


VIEW = ArtifactView(
    run_id="run",
    job_id="job",
    job="build",
    attempt=1,
    name="dist",
    digest=hashlib.sha256(archive()).hexdigest(),
    size=len(archive()),
    files=1,
    created_at=1.0,
    expires_at=2.0,
)
BUILD = NeededJob(name="build", state=JobState.SUCCEEDED, artifacts={"dist": VIEW})


class Output:
    """The log of an attempt."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, data: bytes) -> None:
        self.text += data.decode()

    async def mark(self, line: LogMark) -> None:
        self.text += line.decode()

    async def remark(self, text: str) -> None:
        self.text += f"! {text}\n"


class Workspace:
    """An empty workspace beside a directory with one archive."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "source"
        self.path.mkdir()
        self.archives = ArtifactArchives(directory / "artifacts")
        self.archives.prepare()
        with self.archives.incoming() as incoming:
            incoming.file.write(archive())
            self.archives.place(incoming, VIEW.digest, 0)
        self.log = Output()
        self.stop = asyncio.Event()

    @property
    def archive(self) -> Path:
        path = self.archives.find(VIEW.digest)
        assert path is not None
        return path

    async def hand_in(
        self, jobs: dict[str, NeededJob] | NeededJobs, *needed: NeededArtifact, has_directory: bool = True
    ) -> Mapping[str, str] | Outcome:
        async def known(_: object) -> dict[str, NeededJob]:
            assert isinstance(jobs, dict)
            return jobs

        attempt = replace(
            execution(job("true", needed_artifacts=needed or (NEEDED,))),
            needed_jobs=known if isinstance(jobs, dict) else jobs,
        )
        keeping = ArtifactKeeping(directory=self.archives) if has_directory else None
        handing = Handing(keeping=keeping, attempt=attempt, log=self.log, stop=self.stop)
        return await handing.hand_in(self.path)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


async def test_artifacts_are_placed_in_order_and_logged(workspace: Workspace) -> None:
    again = replace(NEEDED, into="")
    (workspace.path / "dist").mkdir()
    (workspace.path / "dist/a").write_text("of the checkout")
    assert await workspace.hand_in({"build": BUILD}, NEEDED, again) == {}
    assert (workspace.path / "in/dist/a").read_bytes() == b"content"
    assert (workspace.path / "dist/a").read_bytes() == b"content"
    line = f"dist of build: files: 1, bytes: {VIEW.size}, sha256:{VIEW.digest}\n"
    assert workspace.log.text == f"$ artifacts{2 * line}" or workspace.log.text == f"$ artifacts\n{2 * line}"


def removed(workspace: Workspace) -> None:
    workspace.archive.unlink()


def changed(workspace: Workspace) -> None:
    content = bytearray(archive())
    content[512] = 1
    workspace.archive.write_bytes(content)


def cut(workspace: Workspace) -> None:
    workspace.archive.write_bytes(archive()[:600])


def grown(workspace: Workspace) -> None:
    workspace.archive.write_bytes(archive() + b"more")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (removed, "has no archive sha256:"),
        (changed, "its archive is damaged: its SHA-256 is"),
        (cut, "its archive is damaged: it is no archive: it is cut off (byte 600)"),
        (grown, "its archive is damaged: it is no archive: something follows its end"),
    ],
)
async def test_a_damaged_archive_is_the_fault_of_the_world(
    workspace: Workspace, change: Callable[[Workspace], None], words: str
) -> None:
    change(workspace)
    outcome = await workspace.hand_in({"build": BUILD})
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_UNAVAILABLE)
    assert outcome.detail.startswith("artifact dist of build: ")
    assert words in outcome.detail


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ({}, "its job is not among the jobs of this run"),
        ({"build": replace(BUILD, artifacts={})}, "it has expired; run its job again"),
        (
            {"build": NeededJob(name="build", state=JobState.SKIPPED)},
            "its job is skipped, and hands nothing out",
        ),
        (
            {"build": NeededJob(name="build", state=JobState.TIMED_OUT)},
            "its job is timed out, and hands nothing out",
        ),
    ],
)
async def test_an_artifact_that_does_not_exist_fails_the_job(
    workspace: Workspace, jobs: dict[str, NeededJob], words: str
) -> None:
    outcome = await workspace.hand_in(jobs)
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_MISSING)
    assert outcome.detail.startswith(f"artifact dist of build: {words}")


async def test_a_link_in_the_checkout_is_named_and_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workspace.path / "in").symlink_to("../elsewhere")
    outcome = await workspace.hand_in({"build": BUILD})
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_NOT_PLACED)
    assert "in the workspace, in is no directory" in outcome.detail
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_cancelled_job_ends_as_cancelled(workspace: Workspace) -> None:
    workspace.stop.set()
    outcome = await workspace.hand_in({"build": BUILD})
    assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.CANCEL_REQUESTED


async def test_without_a_directory_or_a_store_it_is_tried_again(workspace: Workspace) -> None:
    async def away(_: object) -> dict[str, NeededJob]:
        raise StoreUnavailable("the store", "gone")

    for outcome in (
        await workspace.hand_in({"build": BUILD}, has_directory=False),
        await workspace.hand_in(away),
    ):
        assert isinstance(outcome, Outcome)
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.ARTIFACT_UNAVAILABLE)


async def test_a_cancelled_task_waits_for_the_thread_that_writes(workspace: Workspace) -> None:
    attempt = asyncio.create_task(workspace.hand_in({"build": BUILD}))
    await asyncio.sleep(0)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
