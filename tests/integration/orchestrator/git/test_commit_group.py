"""Commits of one repository share a fetch, and none fails the others."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy, GitResult
from solstice_orchestrator.git.commit_group import (
    LEFT_TO_GIT_SECONDS,
    FilesOrFailure,
    FilesRequest,
    RepositorySizes,
    SingleFetch,
    fetch_group,
    fetch_single,
)
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository, emptied
from tests.servers.git_servers import answering, git_backend, http_server, plain_files

PATH = ".solstice/workflow.kdl"
POLICY = GitPolicy(protocols=("file", "http"), environment={"PATH": os.environ["PATH"]})


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "harbour")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The git commands that were run, by their names.

    Those of one process are joined.
    """
    seen: list[str] = []
    converse, run_then = Git.converse, Git.run_then

    def name(arguments: Sequence[str]) -> str:
        return next(word for word in arguments if word in {"fetch", "ls-tree", "cat-file"})

    async def counted(git: Git, *arguments: str, **options: Any) -> GitResult[Any]:
        seen.append(name(arguments))
        return await converse(git, *arguments, **options)

    async def both_counted(
        git: Git, arguments: Sequence[str], then: Sequence[str], **options: Any
    ) -> GitResult[Any]:
        seen.append(name(arguments))
        result = await run_then(git, arguments, then, **options)
        if result.stdout is not None:
            seen[-1] += f", {name(then)}"
        return result

    monkeypatch.setattr(Git, "converse", counted)
    monkeypatch.setattr(Git, "run_then", both_counted)
    return seen


def file_requests(
    url: str, *shas: str, paths: Sequence[str] = (PATH, "job.sh"), **changes: Any
) -> list[FilesRequest]:
    return [
        FilesRequest(request=job_request(repo_url=url, commit_sha=sha, **changes), paths=tuple(paths))
        for sha in shas
    ]


async def together(
    requests: Sequence[FilesRequest], tmp_path: Path, *, policy: GitPolicy = POLICY
) -> Sequence[FilesOrFailure | SingleFetch]:
    answers = await fetch_group(requests, policy=policy, scratch=tmp_path / "scratch")
    await emptied(tmp_path / "scratch")
    return answers


async def apart(
    requests: Sequence[FilesRequest],
    how: Sequence[FilesOrFailure | SingleFetch],
    tmp_path: Path,
    *,
    policy: GitPolicy = POLICY,
) -> Sequence[FilesOrFailure]:
    """The final answers, after commits that need single fetches got them."""
    return [
        await fetch_single(want, way, policy=policy, scratch=tmp_path / "scratch")
        if isinstance(way, SingleFetch)
        else way
        for want, way in zip(requests, how, strict=True)
    ]


def commit_of_tree(repository: Repository, tree: bytes) -> str:
    """A commit of a tree that git itself would not write."""
    written = subprocess.run(
        ["git", "hash-object", "-t", "tree", "--literally", "-w", "--stdin"],
        cwd=repository.path,
        env=GIT_ENVIRONMENT,
        input=tree,
        check=True,
        capture_output=True,
    )
    return repository.git("commit-tree", "-m", "evil", written.stdout.decode().strip())


def reasons(answers: Sequence[FilesOrFailure | SingleFetch]) -> list[Reason | FilesOrFailure | SingleFetch]:
    return [answer.reason if isinstance(answer, CheckoutFailed) else answer for answer in answers]


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("gives_single_files", [True, False], ids=["single files", "whole commits"])
async def test_a_group_costs_one_conversation(
    tmp_path: Path, commands: list[str], object_format: str, gives_single_files: bool
) -> None:
    repository = Repository(tmp_path / "harbour", object_format=object_format)
    repository.git("config", "uploadpack.allowFilter", str(gives_single_files).lower())
    shas = [
        repository.commit({PATH: "one", "job.sh": "sh"}),
        repository.commit({PATH: "two", ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = ../x\n'}),
        repository.commit({"other": "PATH is the parent's here, and not changed"}),
        repository.commit({PATH: "one"}),
    ]
    (repository.path / PATH).unlink()
    shas += [repository.commit({"job.sh": "a script"})]
    (repository.path / "job.sh").unlink()
    shas += [repository.commit({})]
    assert await together(file_requests(repository.url, *shas), tmp_path) == [
        {PATH: b"one"},
        {PATH: b"two"},
        {PATH: b"two"},
        {PATH: b"one"},
        {"job.sh": b"a script"},
        {},
    ]
    assert commands == ["fetch, cat-file"] * (1 + gives_single_files)


async def test_only_what_is_needed_is_asked_for(repository: Repository, tmp_path: Path) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    large = os.urandom(4_000_000)
    shas = [repository.commit({PATH: str(number), "job.sh": large}) for number in range(2)]
    policy = GitPolicy(protocols=("file",), planning_max_bytes=1_000_000)
    assert await together(file_requests(repository.url, *shas), tmp_path, policy=policy) == [
        {PATH: b"0"},
        {PATH: b"1"},
    ]


async def test_commits_of_a_small_repository_come_with_their_small_files(
    repository: Repository, tmp_path: Path, commands: list[str]
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    sizes = RepositorySizes()

    async def fetches_of(**files: str | bytes) -> int:
        sha = repository.commit({PATH: os.urandom(8).hex(), **files})
        commands.clear()
        (answer,) = await fetch_group(
            file_requests(repository.url, sha), policy=POLICY, scratch=tmp_path / "scratch", sizes=sizes
        )
        assert answer == {PATH: (repository.path / PATH).read_bytes()}
        return sum("fetch" in command for command in commands)

    # Twice for an unknown repository, then without a client of git.
    assert [await fetches_of(), await fetches_of(), await fetches_of()] == [2, 0, 0]
    # Large files are left out nevertheless, by git.
    assert await fetches_of(**{"large.bin": os.urandom(4_000_000)}) == 1
    assert await fetches_of() == 1
    # It has many small ones by now.
    assert await fetches_of(**{f"{number}.bin": os.urandom(30_000) for number in range(10)}) == 1
    assert [await fetches_of(), await fetches_of()] == [2, 2]


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("needs_git", [False, True], ids=["small fetch", "git fetch"])
async def test_small_commits_are_read_without_a_second_git_as_it_would_read_them(
    tmp_path: Path, commands: list[str], object_format: str, *, needs_git: bool
) -> None:
    repository = Repository(tmp_path / "harbour", object_format=object_format)
    sizes = RepositorySizes()
    sizes.learn(repository.url, 1)
    if needs_git:
        sizes.leave_to_git(repository.url)
    shas = [
        repository.commit({"README": "nothing to do"}),
        repository.commit({PATH: "one", "job.sh": "sh", "empty/.keep": ""}),
        repository.commit({PATH: ""}),
        repository.commit({PATH: "x" * 60_000}),
    ]
    repository.git("update-index", "--chmod=+x", "job.sh")
    repository.git("rm", "--cached", "--quiet", PATH)
    repository.git("commit", "--quiet", "--message", "Run a script")
    shas += [repository.git("rev-parse", "HEAD")]
    (repository.path / PATH).unlink()
    (repository.path / PATH).symlink_to("../job.sh")
    shas += [repository.commit({})]
    (repository.path / PATH).unlink()
    shas += [repository.commit({f"{PATH}/down": "a directory"})]
    found = list[FilesOrFailure | SingleFetch]()
    for sha in shas:
        requests = file_requests(repository.url, sha)
        requests += file_requests(repository.url, sha, paths=["README/no", "empty/.keep", "job.sh"])
        commands.clear()
        answers = await fetch_group(requests, policy=POLICY, scratch=tmp_path / "scratch", sizes=sizes)
        assert commands == (["fetch"] if needs_git else [])
        assert list(map(str, answers)) == list(map(str, await together(requests, tmp_path)))
        found += answers[:1]
    assert found[:5] == [{}, {PATH: b"one"}, {PATH: b""}, {PATH: b"x" * 60_000}, {"job.sh": b"sh"}]


@pytest.mark.parametrize("needs_git", [False, True], ids=["small fetch", "git fetch"])
async def test_a_group_of_small_commits_is_read_without_a_second_git(
    repository: Repository, tmp_path: Path, commands: list[str], *, needs_git: bool
) -> None:
    """Trees of several commits come as deltas of each other."""
    sizes = RepositorySizes()
    sizes.learn(repository.url, 1)
    if needs_git:
        sizes.leave_to_git(repository.url)
    files = {f"{number}.txt": str(number) for number in range(50)}
    shas = [repository.commit({PATH: str(number), **files}) for number in range(3)]
    answers = await fetch_group(
        file_requests(repository.url, *shas), policy=POLICY, scratch=tmp_path / "scratch", sizes=sizes
    )
    assert answers == [{PATH: b"0"}, {PATH: b"1"}, {PATH: b"2"}]
    assert commands == (["fetch"] if needs_git else [])


@pytest.mark.parametrize("unusual", ["a large file", "a tag", "an odd name"])
async def test_git_reads_what_is_unusual_in_a_small_commit(
    repository: Repository, tmp_path: Path, commands: list[str], unusual: str
) -> None:
    now, files = [100.0], {PATH: "x", "ü": "x"}
    sizes = RepositorySizes(clock=lambda: now[0])
    sizes.learn(repository.url, 1)
    if unusual == "a large file":
        files = {PATH: os.urandom(150_000).hex()}
    sha = repository.commit(files)
    if unusual == "a tag":
        repository.git("tag", "--annotate", "--message", "v1", "v1")
        sha = repository.git("rev-parse", "v1")
    (answer,) = await fetch_group(
        file_requests(repository.url, sha), policy=POLICY, scratch=tmp_path / "scratch", sizes=sizes
    )
    assert answer == {PATH: files[PATH].encode()}
    assert commands == ["fetch", *([] if unusual == "an odd name" else ["cat-file"])]
    # Other commits of the repository go to git at once, for a while.
    assert sizes.needs_git(repository.url)
    now[0] += LEFT_TO_GIT_SECONDS
    assert not sizes.needs_git(repository.url)


async def test_a_repository_of_many_files_is_not_small(
    repository: Repository, tmp_path: Path, commands: list[str]
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    sha = repository.commit({PATH: "one", **{os.urandom(20).hex(): f"{number}" for number in range(2_000)}})
    sizes = RepositorySizes()
    for _ in range(2):
        await fetch_group(
            file_requests(repository.url, sha), policy=POLICY, scratch=tmp_path / "scratch", sizes=sizes
        )
    assert len(commands) == 4


async def test_each_gets_the_paths_that_it_asked_for(repository: Repository, tmp_path: Path) -> None:
    sha = repository.commit({PATH: "x", "job.sh": "y", "deep/down/z.kdl": "z"})
    requests = [
        *file_requests(repository.url, sha),
        *file_requests(repository.url, sha, paths=["deep/down/z.kdl"]),
    ]
    requests += file_requests(repository.url, sha, paths=["deep/down", PATH])
    found = await together(requests, tmp_path)
    assert found[:2] == [{PATH: b"x"}, {"deep/down/z.kdl": b"z"}]
    assert isinstance(found[2], CheckoutFailed)
    assert "deep/down is a directory" in found[2].detail


async def test_a_merge_has_its_files_independent_of_its_parents(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({PATH: "base"})
    repository.git("checkout", "--quiet", "-b", "side")
    side = repository.commit({"side": "1"})
    repository.git("checkout", "--quiet", "main")
    repository.commit({"main": "2"})
    repository.git("merge", "--quiet", "--no-ff", "--message", "Merge", "side")
    merge = repository.git("rev-parse", "HEAD")
    assert await together(file_requests(repository.url, side, merge), tmp_path) == [{PATH: b"base"}] * 2


async def test_files_that_are_none_are_refused_for_their_commits_alone(
    repository: Repository, tmp_path: Path
) -> None:
    good = repository.commit({PATH: "x"})
    (repository.path / PATH).unlink()
    (repository.path / PATH).symlink_to("/etc/passwd")
    link = repository.commit({})
    (repository.path / PATH).unlink()
    directory = repository.commit({f"{PATH}/x": "y"})
    repository.git("rm", "--quiet", "-r", PATH)
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{good},{PATH}")
    repository.git("commit", "--quiet", "--message", "Add a submodule")
    submodule = repository.git("rev-parse", "HEAD")
    found = await together(file_requests(repository.url, link, good, directory, submodule), tmp_path)
    assert found[1] == {PATH: b"x"}
    assert [answer.detail for answer in found if isinstance(answer, CheckoutFailed)] == [
        f"{PATH} is a symbolic link in this commit; it must be a plain file",
        f"{PATH} is a directory in this commit; it must be a plain file",
        f"{PATH} is a submodule in this commit; it must be a plain file",
    ]
    assert {answer.reason for answer in found if isinstance(answer, CheckoutFailed)} == {
        Reason.INVALID_WORKFLOW
    }


@pytest.mark.parametrize("gives_single_files", [True, False], ids=["single files", "whole commits"])
async def test_a_file_behind_very_many_others_is_found_for_its_commit_alone(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: list[str],
    gives_single_files: bool,
) -> None:
    repository.git("config", "uploadpack.allowFilter", str(gives_single_files).lower())
    monkeypatch.setattr("solstice_orchestrator.git.objects.tree_entries.MAX_LISTING_BYTES", 2_000)
    good = repository.commit({PATH: "x"})
    crowded = repository.commit({PATH: "y", **{f".solstice/{number}": "z" for number in range(100)}})
    (repository.path / PATH).unlink()
    absent = repository.commit({})
    found = await together(file_requests(repository.url, crowded, good, absent), tmp_path)
    assert found == [{PATH: b"y"}, {PATH: b"x"}, {}]
    # Each of the two crowded commits is asked for both paths.
    assert commands.count("ls-tree") == 4


async def test_a_directory_of_very_many_files_is_refused_for_its_commit_alone(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_orchestrator.git.objects.tree_entries.MAX_LISTING_BYTES", 2_000)
    crowded = repository.commit({f"{PATH}/{number}": "x" for number in range(100)})
    (repository.path / ".solstice").rename(tmp_path / "away")
    good = repository.commit({PATH: "x"})
    found = await together(file_requests(repository.url, crowded, good), tmp_path)
    assert reasons(found) == [Reason.INVALID_WORKFLOW, {PATH: b"x"}]


@pytest.mark.parametrize(
    "path",
    [
        "x.kdl",
        "deep/er/x.kdl",
        "straße/日本.kdl",
        "deep//x.kdl",
        "./x.kdl",
        "deep/",
        ".",
        "x.kdl/y",
        "link/x.kdl",
    ],
)
async def test_a_path_is_found_exactly_where_git_shows_it(
    repository: Repository, tmp_path: Path, path: str
) -> None:
    (repository.path / "link").symlink_to("deep")
    files = {"x.kdl": "root", "deep/x.kdl": "deep", "deep/er/x.kdl": "deeper", "straße/日本.kdl": "far"}
    sha = repository.commit(files)
    expected = {path: files[path].encode()} if path in files else {}
    assert await together(file_requests(repository.url, sha, paths=[path]), tmp_path) == [expected]


async def test_a_huge_file_is_cut_and_leaves_the_others_whole(repository: Repository, tmp_path: Path) -> None:
    shas = [repository.commit({PATH: content}) for content in ("before", "x" * 3_000_000, "after")]
    before, huge, after = await together(file_requests(repository.url, *shas), tmp_path)
    assert (before, after) == ({PATH: b"before"}, {PATH: b"after"})
    assert huge == {PATH: b"x" * 1024 * 1024}


async def test_commits_that_are_not_there_go_apart_and_the_others_stay_together(
    repository: Repository, tmp_path: Path, commands: list[str]
) -> None:
    shas = [repository.commit({PATH: str(number)}) for number in range(2)]
    requests = file_requests(repository.url, "1" * 40, shas[0], "2" * 40, shas[1])
    found = await together(requests, tmp_path)
    assert found == [SingleFetch.BY_REF, {PATH: b"0"}, SingleFetch.BY_REF, {PATH: b"1"}]
    assert commands == ["fetch", "fetch", "fetch, cat-file"]
    ends = await apart(requests, found, tmp_path)
    assert [end.may_appear for end in ends if isinstance(end, CheckoutFailed)] == [True, True]


async def test_a_group_of_many_that_are_not_there_is_given_up_soon(
    repository: Repository, tmp_path: Path, commands: list[str]
) -> None:
    good = repository.commit({PATH: "x"})
    requests = file_requests(repository.url, *(f"{number:040x}" for number in range(1, 9)), good)
    found = await together(requests, tmp_path)
    assert commands == ["fetch"] * 4
    assert sorted(way.name for way in found if isinstance(way, SingleFetch)) == ["AGAIN"] * 5 + ["BY_REF"] * 4
    assert found[-1] is SingleFetch.AGAIN


async def test_objects_that_no_git_would_write_fail_their_commit_alone(
    repository: Repository, tmp_path: Path
) -> None:
    good = repository.commit({PATH: "x"})
    evil = commit_of_tree(
        repository, b"100644 .git\0" + bytes.fromhex(repository.git("rev-parse", f"{good}:{PATH}"))
    )
    requests = file_requests(repository.url, good, evil)
    found = await together(requests, tmp_path)
    assert found == [SingleFetch.AGAIN, SingleFetch.AGAIN]
    assert reasons(await apart(requests, found, tmp_path)) == [{PATH: b"x"}, Reason.COMMIT_UNUSABLE]


async def test_a_commit_larger_than_allowed_fails_alone(repository: Repository, tmp_path: Path) -> None:
    good = repository.commit({PATH: "x"})
    large = repository.commit({PATH: "y", "large.bin": os.urandom(3_000_000)})
    policy = GitPolicy(protocols=("file",), planning_max_bytes=1_000_000)
    requests = file_requests(repository.url, large, good)
    ends = await apart(requests, await together(requests, tmp_path, policy=policy), tmp_path, policy=policy)
    assert reasons(ends) == [Reason.COMMIT_UNUSABLE, {PATH: b"x"}]


async def test_a_server_that_gives_nothing_by_id_is_asked_for_the_ref_of_each(
    repository: Repository, tmp_path: Path
) -> None:
    shas = [repository.commit({PATH: str(number)}) for number in range(3)]
    with http_server(git_backend(repository.path.parent, HTTP_GIT_PROTOCOL="version=0")) as port:
        requests = file_requests(f"http://127.0.0.1:{port}/harbour/.git", *shas, ref="refs/heads/main")
        found = await together(requests, tmp_path)
        assert {answer for answer in found if isinstance(answer, SingleFetch)} <= {
            SingleFetch.AGAIN,
            SingleFetch.BY_REF,
        }
        assert await apart(requests, found, tmp_path) == [{PATH: b"0"}, {PATH: b"1"}, {PATH: b"2"}]


async def test_a_server_that_gives_no_single_files_gives_each_commit_whole(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    shas = [repository.commit({PATH: str(number)}) for number in range(2)]
    (repository.path / PATH).unlink()
    shas += [repository.commit({})]
    for number, sha in enumerate(shas):
        repository.git("branch", f"advertised-{number}", sha)
    with http_server(git_backend(repository.path.parent, HTTP_GIT_PROTOCOL="version=0")) as port:
        requests = file_requests(f"http://127.0.0.1:{port}/harbour/.git", *shas)
        found = await together(requests, tmp_path)
        assert found == [SingleFetch.WHOLE, SingleFetch.WHOLE, {}]
        assert await apart(requests, found, tmp_path) == [{PATH: b"0"}, {PATH: b"1"}, {}]


async def test_a_server_of_plain_files_is_asked_for_the_branch_of_each(
    repository: Repository, tmp_path: Path
) -> None:
    shas = [repository.commit({PATH: str(number)}) for number in range(2)]
    repository.git("update-server-info")
    with http_server(plain_files(repository.path / ".git")) as port:
        requests = file_requests(f"http://127.0.0.1:{port}/", *shas)
        found = await together(requests, tmp_path)
        assert await apart(requests, found, tmp_path) == [{PATH: b"0"}, {PATH: b"1"}]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(404, Reason.COMMIT_NOT_FOUND), (503, Reason.CHECKOUT_FAILED)],
    ids=["not found", "overloaded"],
)
async def test_a_failure_of_the_repository_is_everybodys_after_one_try(
    tmp_path: Path, commands: list[str], status: int, reason: Reason
) -> None:
    with http_server(answering(status)) as port:
        found = await together(file_requests(f"http://127.0.0.1:{port}/x", *("1" * 40, "2" * 40)), tmp_path)
    assert reasons(found) == [reason] * 2
    assert commands == ["fetch"]


async def test_a_silent_server_keeps_no_caller_waiting_twice(tmp_path: Path, commands: list[str]) -> None:
    policy = GitPolicy(protocols=("http",), planning_timeout_seconds=0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        requests = file_requests(f"http://127.0.0.1:{mute.getsockname()[1]}/x", "1" * 40, "2" * 40)
        found = await together(requests, tmp_path, policy=policy)
    assert reasons(found) == [Reason.CHECKOUT_FAILED] * 2
    assert commands == ["fetch"]


async def test_a_fetch_that_ran_out_of_time_on_the_way_is_tried_for_each_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_then = Git.run_then

    async def stuck(git: Git, *commands: Sequence[str], **options: Any) -> GitResult[Any]:
        done = await run_then(git, *commands, **options)
        await asyncio.Event().wait()
        return done

    shas = [repository.commit({PATH: str(number)}) for number in range(2)]
    requests = file_requests(repository.url, *shas)
    monkeypatch.setattr(Git, "run_then", stuck)
    policy = GitPolicy(protocols=("file",), planning_timeout_seconds=2)
    found = await together(requests, tmp_path, policy=policy)
    assert found == [SingleFetch.AGAIN] * 2
    monkeypatch.undo()
    assert await apart(requests, found, tmp_path) == [{PATH: b"0"}, {PATH: b"1"}]
