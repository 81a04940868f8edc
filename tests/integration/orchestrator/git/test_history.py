"""A checkout has the history and the tags that its workflow asks for."""

import os
import subprocess
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from tests.builders import job_request
from tests.executor_harness import open_harness, replace_checkout
from tests.repositories import GIT_ENVIRONMENT, Repository
from tests.servers.git_servers import git_backend, http_server

POLICY = GitPolicy(protocols=("file", "http"), timeout_seconds=30, environment={"PATH": os.environ["PATH"]})


class TaggedHarbour:
    """A repository of four commits, of which three have a tag."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(folder / "harbour")
        self.shas = [self.repository.commit({"hello.txt": f"ahoy {number}\n"}) for number in range(4)]
        self.repository.git("tag", "v0", self.shas[0])
        self.repository.git("tag", "v2", self.shas[2])
        self.repository.git("tag", "--annotate", "--message=x", "v3", self.shas[3])
        self.cache = ObjectCache(folder / "work" / "git" / "objects", 1024**3)
        self.request = job_request(
            repo_url=self.repository.url, commit_sha=self.shas[3], ref="refs/heads/main", trusted=True
        )
        self._count = 0

    async def check_out(self, spec: CheckoutSpec, **changes: str) -> Path:
        self._count += 1
        place = self.folder / f"place-{self._count}"
        await check_out(
            self.request.model_copy(update=changes),
            place,
            policy=POLICY,
            scratch=self.folder / "work" / "git",
            objects=self.cache,
            spec=spec,
        )
        return place


@pytest.fixture
def harbour(tmp_path: Path) -> TaggedHarbour:
    return TaggedHarbour(tmp_path)


def output(place: Path, *arguments: str) -> list[str]:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=place, env=GIT_ENVIRONMENT, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("spec", "commits", "tags"),
    [
        (CheckoutSpec(), 1, []),
        (CheckoutSpec(tags=True), 1, ["v3"]),
        (CheckoutSpec(depth=2), 2, []),
        (CheckoutSpec(depth=2, tags=True), 2, ["v2", "v3"]),
        (CheckoutSpec(depth=0), 4, []),
        (CheckoutSpec(depth=0, tags=True), 4, ["v0", "v2", "v3"]),
    ],
)
async def test_the_first_and_the_second_checkout_have_the_history_that_was_asked_for(
    spec: CheckoutSpec, commits: int, tags: list[str], harbour: TaggedHarbour
) -> None:
    for _ in range(2):
        place = await harbour.check_out(spec)
        assert output(place, "rev-list", "HEAD") == harbour.shas[::-1][:commits]
        assert output(place, "tag") == tags
        assert output(place, "status", "--porcelain") == []


async def test_checkouts_of_one_commit_share_no_more_than_both_asked_for(harbour: TaggedHarbour) -> None:
    specs = [CheckoutSpec(depth=0, tags=True), CheckoutSpec(), CheckoutSpec(depth=0), CheckoutSpec(depth=2)]
    places = [await harbour.check_out(spec) for spec in specs]
    assert [len(output(place, "rev-list", "HEAD")) for place in places] == [4, 1, 4, 2]
    assert [len(output(place, "tag")) for place in places] == [3, 0, 0, 0]


async def test_a_run_sees_a_tag_that_was_made_after_an_earlier_run_of_the_commit(
    harbour: TaggedHarbour,
) -> None:
    await harbour.check_out(CheckoutSpec(tags=True))
    harbour.repository.git("tag", "late", harbour.shas[3])
    request_id = job_request().request_id
    place = await harbour.check_out(CheckoutSpec(tags=True), request_id=request_id, ref="refs/tags/late")
    assert output(place, "tag") == ["late", "v3"]


async def test_a_server_that_gives_nothing_by_id_gives_the_history_as_well(harbour: TaggedHarbour) -> None:
    older = harbour.shas[1]
    with http_server(git_backend(harbour.folder, HTTP_GIT_PROTOCOL="")) as port:
        url = f"http://127.0.0.1:{port}/harbour/.git"
        for depth in (0, 2):
            spec = CheckoutSpec(depth=depth, tags=True)
            place = await harbour.check_out(spec, repo_url=url, commit_sha=older)
            assert output(place, "rev-list", "HEAD") == harbour.shas[1::-1]
            assert "v0" in output(place, "tag")


async def test_a_job_without_a_checkout_has_an_empty_workspace_and_starts_no_git(tmp_path: Path) -> None:
    started, program = tmp_path / "started", tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    program.chmod(0o755)
    policy = GitPolicy(protocols=("file",), environment={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    async with open_harness(tmp_path / "work", Repository(tmp_path / "harbour")) as harness:
        replace_checkout(harness, git=policy)
        outcome = await harness.run("ls -A; echo in $SOLSTICE_WORKSPACE; pwd", checkout=None)
        assert outcome.state is JobState.SUCCEEDED
        step, named, entered = harness.text.splitlines()
        assert (step, named) == ("$ step 1", f"in {entered}")
        assert not started.exists()
        assert (await harness.run("true")).reason is Reason.CHECKOUT_FAILED
        assert started.exists()


async def test_jobs_of_one_commit_find_each_what_their_own_checkout_says(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "harbour")
    repository.commit({"first.txt": "x"})
    async with open_harness(tmp_path / "work", repository) as harness:
        caches = {
            "objects": ObjectCache(tmp_path / "objects", 1024**3),
            "small_checkouts": SmallCheckouts(1024**3),
        }
        replace_checkout(harness, **caches)
        for spec in (CheckoutSpec(), CheckoutSpec(depth=0), CheckoutSpec(), CheckoutSpec(depth=0)):
            assert (await harness.run("git rev-list --count HEAD", checkout=spec)).state is JobState.SUCCEEDED
    assert [line for line in harness.text.splitlines() if line.isdecimal()] == ["1", "2", "1", "2"]


async def test_a_small_checkout_is_written_again_no_longer_than_its_right_counts_as_proven(
    tmp_path: Path,
) -> None:
    now, repository = [100.0], Repository(tmp_path / "harbour")
    async with open_harness(tmp_path / "work", repository) as harness:
        objects = ObjectCache(tmp_path / "objects", 1024**3, clock=lambda: now[0])
        replace_checkout(harness, objects=objects, small_checkouts=SmallCheckouts(1024**3))
        await harness.run("true")
        repository.path.rename(tmp_path / "gone")
        assert (await harness.run("true")).state is JobState.SUCCEEDED
        now[0] += PROVEN_SECONDS
        assert (await harness.run("true")).state is JobState.ERRORED
