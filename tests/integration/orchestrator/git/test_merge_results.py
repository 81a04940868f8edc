"""A job may test the merge of a change request into its target branch."""

import asyncio
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.checkout_spec import ChangeCommit, CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts import merge_results
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from tests.builders import job_request
from tests.repositories import Repository

POLICY = GitPolicy(protocols=("file",), timeout_seconds=30)
MERGE = CheckoutSpec(ref=ChangeCommit.MERGE)


class ChangedHarbour:
    """A repository with a change request whose target branch has gone on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(folder / "harbour")
        base = self.repository.commit({"base.txt": "b"})
        self.target = self.repository.commit({"target.txt": "t"})
        self.repository.git("checkout", "--quiet", "--detach", base)
        self.head = self.repository.commit({"change.txt": "c"})

    def merge(self, ref: str = "refs/pull/7/merge") -> str:
        self.repository.git("checkout", "--quiet", "--detach", self.target)
        self.repository.git("merge", "--quiet", "--no-ff", "--message", "Merge", self.head)
        self.repository.git("update-ref", ref, "HEAD")
        return self.repository.git("rev-parse", "HEAD")

    def request(self, **changes: object) -> JobRequestV1:
        fields = {
            "source": Source.GITHUB,
            "change_number": 7,
            "ref": "refs/pull/7/head",
            "commit_sha": self.head,
            **changes,
        }
        return job_request(repo_url=self.repository.url, **fields)

    async def check_out(self, request: JobRequestV1) -> set[str]:
        place = self.folder / "place"
        await check_out(request, place, policy=POLICY, scratch=self.folder / "scratch", spec=MERGE)
        return {path.name for path in place.glob("*.txt")}


@pytest.fixture
def harbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangedHarbour:
    monkeypatch.setattr(merge_results, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(merge_results, "PAUSE_SECONDS", 0.05)
    return ChangedHarbour(tmp_path)


@pytest.mark.parametrize("kind", ["pull", "merge-requests"])
async def test_the_merge_has_the_files_of_the_change_and_of_the_target(
    kind: str, harbour: ChangedHarbour
) -> None:
    harbour.merge(f"refs/{kind}/7/merge")
    files = await harbour.check_out(harbour.request(ref=f"refs/{kind}/7/head"))
    assert files == {"base.txt", "target.txt", "change.txt"}


async def test_a_push_has_no_merge_and_is_checked_out_as_it_is(harbour: ChangedHarbour) -> None:
    request = harbour.request(change_number=None, ref="refs/heads/main")
    assert await harbour.check_out(request) == {"base.txt", "change.txt"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("no ref", "refs/pull/7/merge is not there: the change conflicts"),
        ("the merge of an older head", "refs/pull/7/merge merges another commit than "),
        ("no merge at all", "refs/pull/7/merge merges another commit than "),
    ],
)
async def test_a_change_without_a_merge_of_its_commit_fails(
    state: str, words: str, harbour: ChangedHarbour
) -> None:
    if state == "the merge of an older head":
        harbour.merge()
        harbour.repository.git("checkout", "--quiet", "--detach", harbour.head)
        harbour.head = harbour.repository.commit({"newer.txt": "n"})
    elif state == "no merge at all":
        harbour.repository.git("update-ref", "refs/pull/7/merge", harbour.head)
    with pytest.raises(CheckoutFailed, match="conflicts with its target branch") as caught:
        await harbour.check_out(harbour.request())
    assert caught.value.reason is Reason.COMMIT_UNUSABLE
    assert words in caught.value.detail


@pytest.mark.parametrize("source", [Source.FORGEJO, Source.GITEA])
async def test_a_forge_that_keeps_no_merges_is_not_waited_for(
    source: Source, harbour: ChangedHarbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wait would last longer than this test may.
    monkeypatch.setattr(merge_results, "WAIT_SECONDS", 10_000.0)
    monkeypatch.setattr(merge_results, "PAUSE_SECONDS", 1_000.0)
    with pytest.raises(CheckoutFailed, match=f'^{source} keeps no merge results.*use ref="head"$') as caught:
        await harbour.check_out(harbour.request(source=source))
    assert caught.value.reason is Reason.COMMIT_UNUSABLE
    harbour.merge()
    files = await harbour.check_out(harbour.request(source=source))
    assert files == {"base.txt", "target.txt", "change.txt"}


async def test_a_change_whose_ref_is_unknown_fails(harbour: ChangedHarbour) -> None:
    with pytest.raises(CheckoutFailed, match="no ref of a change request's head") as caught:
        await harbour.check_out(harbour.request(ref=None))
    assert caught.value.reason is Reason.COMMIT_UNUSABLE


async def test_a_merge_that_comes_a_moment_later_is_waited_for(
    harbour: ChangedHarbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_results, "WAIT_SECONDS", 20.0)
    absent, find = asyncio.Event(), merge_results._merge_at

    async def noticed(git: Git, request: JobRequestV1, ref: str) -> merge_results._Merge | None:
        found = await find(git, request, ref)
        if found is None:
            absent.set()
        return found

    monkeypatch.setattr(merge_results, "_merge_at", noticed)
    async with asyncio.TaskGroup() as tasks:
        coming = tasks.create_task(harbour.check_out(harbour.request()))
        await absent.wait()
        harbour.merge()
    assert coming.result() == {"base.txt", "target.txt", "change.txt"}
