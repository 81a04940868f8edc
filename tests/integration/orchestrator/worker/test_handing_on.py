"""Jobs of one run hand files on, by the store and the directory of artifacts."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import ArtifactSpec, JobSpec, Reason
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import JobView, RunView
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.artifacts.placing import PlacedFiles, PlacingLimits, place_files
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.executors import Executor, make_executor
from solstice_orchestrator.worker.workspaces import open_workspaces
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.builders import job_request
from tests.docs_pages import ROOT
from tests.repositories import Repository
from tests.stores import admitted, claimed, planning_task, sqlite_store

WORKFLOW = r"""
job build {
    matrix { os linux mac }
    step make run="mkdir dist; echo {matrix.os} > dist/app; echo $SOLSTICE_ATTEMPT > dist/made"
    artifact dist path="dist/**"
    step version run="echo 1.2 > VERSION; printf 'notes<<END\ntwo\nlines\nEND\n' >> $SOLSTICE_OUTPUT"
    output version "{matrix.os}-{file:VERSION}"
    output notes
}
job test {
    needs build
    artifacts dist from=build into=builds
    artifacts dist from=build-mac
    step given run="echo $SOLSTICE_OUTPUT_BUILD_MAC_VERSION; echo \"$SOLSTICE_OUTPUT_BUILD_LINUX_NOTES\"; env | grep -c ^SOLSTICE_OUTPUT"
    step look run="cat dist/app builds/build-linux/dist/app tracked; git status --short; exit $FAIL"
    env { FAIL "1" }
}
"""


@dataclass(frozen=True)
class Line:
    """A store, and the executor of processes."""

    store: JobStore
    executor: Executor
    archives: ArtifactArchives
    repository: Repository

    async def plan(self, specs: tuple[JobSpec, ...], files: Mapping[str, str] | None = None) -> str:
        request = job_request(
            repo_url=self.repository.url, commit_sha=self.repository.commit(files or {"tracked": "file\n"})
        )
        run_id = await admitted(self.store, request)
        assert await self.store.planned(await planning_task(self.store), specs)
        return run_id

    async def run_claimed(self) -> dict[str, JobView]:
        """Run what may start now, and return it by its name."""
        claims = await claimed(self.store)
        async with asyncio.TaskGroup() as tasks:
            for claim in claims:
                tasks.create_task(
                    execute(claim, store=self.store, executor=self.executor, stop=asyncio.Event())
                )
        views = [await self.store.job(claim.key.job_id) for claim in claims]
        return {view.name: view for view in views if view is not None}

    async def log_of(self, view: JobView) -> str:
        page = await self.store.log(view.job_id)
        assert page is not None
        return b"".join(chunk.data for chunk in page.chunks).decode()


MOMENTS = 30
EXAMPLE = ROOT / "docs/examples/almanac"


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    archives = ArtifactArchives(tmp_path / "artifacts")
    async with open_store(sqlite_store(tmp_path)) as store, open_workspaces(tmp_path / "work") as workspaces:
        executor = make_executor(
            "process",
            workspaces=workspaces,
            git=GitPolicy(protocols=("file",)),
            grace_seconds=0.2,
            artifacts=ArtifactKeeping(directory=archives),
        )
        yield Line(store, executor, archives, Repository(tmp_path / "repository"))


async def test_jobs_hand_files_on_and_a_rerun_gets_those_of_before(line: Line) -> None:
    specs = parse_workflow(WORKFLOW.encode(), default_runs_on="linux").jobs
    run_id = await line.plan(specs)
    built = await line.run_claimed()
    assert {view.state for view in built.values()} == {JobState.SUCCEEDED}
    test = (await line.run_claimed())["test"]
    assert (test.state, test.reason) == (JobState.FAILED, Reason.STEP_FAILED)
    log = await line.log_of(test)
    assert "$ given\nmac-1.2\ntwo\nlines\n4\n" in log
    assert "! output version: bytes: 7\n" in await line.log_of(built["build-mac"])
    assert "\n$ artifacts\ndist of build-linux: files: 2, bytes: 3072, sha256:" in log
    assert "$ look\nmac\nlinux\nfile\n?? builds/\n?? dist/\n" in log

    again = await line.store.rerun_failed(run_id)
    assert isinstance(again, RunView)
    assert await line.store.planned(await planning_task(line.store), specs)
    test = (await line.run_claimed())["test"]
    assert (test.run_id, test.reason) == (again.run_id, Reason.STEP_FAILED)
    log = await line.log_of(test)
    assert "$ given\nmac-1.2\n" in log
    assert "$ look\nmac\nlinux\nfile\n" in log

    for archive in (line.archives.path / "sha256").glob("*/*"):
        archive.unlink()
    assert isinstance(await line.store.rerun_failed(again.run_id), RunView)
    assert await line.store.planned(await planning_task(line.store), specs)
    test = (await line.run_claimed())["test"]
    # The world's failure is tried again.
    assert (test.state, test.reason) == (JobState.BACKOFF, Reason.ARTIFACT_UNAVAILABLE)


async def test_the_jobs_of_the_example_hand_on_what_the_page_says(line: Line) -> None:
    workflow = (EXAMPLE / ".solstice/workflow.kdl").read_bytes()
    specs = tuple(
        # The commit of this test has no modes.
        replace(
            spec,
            steps=tuple(replace(each, run=each.run.replace("./print", "sh ./print")) for each in spec.steps),
        )
        for spec in parse_workflow(workflow, default_runs_on="linux").jobs
    )
    await line.plan(specs, {name: (EXAMPLE / name).read_text() for name in ("VERSION", "print-almanac")})
    views: dict[str, JobView] = {}
    while claimed_now := await line.run_claimed():
        views |= claimed_now
    assert {name: view.state for name, view in views.items()} == dict.fromkeys(
        ("print-harbour", "print-lantern", "version", "check", "announce"), JobState.SUCCEEDED
    )
    assert "$ announce\nalmanac 2027: harbour, monday: high water at noon\n" in await line.log_of(
        views["announce"]
    )
    assert await line.store.outputs(views["print-lantern"].job_id) == {"days": "5"}


def test_a_killed_orchestrator_leaves_no_part_of_an_artifact_to_a_job(tmp_path: Path) -> None:
    """Killed at many moments while it places one: what is placed afterwards, elsewhere, is whole."""
    content = random.Random(7).randbytes(3 * 1024**2)
    (tmp_path / "source/dist").mkdir(parents=True)
    for number in range(6):
        (tmp_path / f"source/dist/{number}").write_bytes(content[number * 2**19 : (number + 1) * 2**19])
    archive = tmp_path / "archive"
    with archive.open("wb") as out:
        spec = ArtifactSpec(name="dist", path="dist/**")
        source = WorkspaceFiles(tmp_path / "source")
        collected = collect(source, spec, out, most_bytes=2**30, room_bytes=2**30)
    assert isinstance(collected, CollectedFiles)
    limits = PlacingLimits(most_bytes=collected.size, most_files=100)
    partly = 0
    for number in range(MOMENTS):
        target = tmp_path / f"target-{number}"
        target.mkdir()
        pid = os.fork()
        if pid == 0:
            with archive.open("rb") as file:
                place_files(file, target, limits=limits, digest=collected.digest)
            os._exit(0)
        time.sleep(0.0003 * number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        partly += 0 < sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) < len(content)
    # Otherwise none was killed in the midst of it.
    assert partly
    target = tmp_path / "target"
    target.mkdir()
    with archive.open("rb") as file:
        placed = place_files(file, target, limits=limits, digest=collected.digest)
    assert isinstance(placed, PlacedFiles)
    assert b"".join((target / f"dist/{number}").read_bytes() for number in range(6)) == content
