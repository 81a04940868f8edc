"""git against real repositories and real servers, friendly and hostile."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_group import FilesRequest, SingleFetch, fetch_single
from solstice_orchestrator.processes.supervisor import descendants
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository, emptied
from tests.servers.git_servers import answering, git_backend, git_daemon, http_server, plain_files

PATH = ".solstice/workflow.kdl"
ANY_PROTOCOL = GitPolicy(
    protocols=("file", "http", "https", "ssh", "git"),
    timeout_seconds=30,
    planning_timeout_seconds=30,
    environment={"PATH": os.environ["PATH"]},
)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "harbour")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def request_for(repository: Repository, sha: str, **changes: Any) -> JobRequestV1:
    return job_request(**{"repo_url": repository.url, "commit_sha": sha, **changes})


async def fetched(
    request: JobRequestV1, scratch: Path, *paths: str, policy: GitPolicy = ANY_PROTOCOL
) -> dict[str, bytes]:
    want = FilesRequest(request=request, paths=paths or (PATH,))
    answer = await fetch_single(want, SingleFetch.AGAIN, policy=policy, scratch=scratch)
    if isinstance(answer, CheckoutFailed):
        raise answer
    return dict(answer)


async def refusal(
    request: JobRequestV1, scratch: Path, *paths: str, policy: GitPolicy = ANY_PROTOCOL
) -> CheckoutFailed:
    with pytest.raises(CheckoutFailed) as caught:
        await fetched(request, scratch, *paths, policy=policy)
    await emptied(scratch)
    return caught.value


def git_output(directory: Path, *arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env=GIT_ENVIRONMENT,
        input=given,
        check=True,
        capture_output=True,
    )
    return done.stdout.decode().strip()


# -- requests ---------------------------------------------------------------------------------------------


async def test_files_are_those_of_that_commit(repository: Repository, scratch: Path) -> None:
    first = repository.commit({PATH: "one", "other": "x"})
    second = repository.commit({PATH: "two"})
    assert await fetched(request_for(repository, first), scratch) == {PATH: b"one"}
    assert await fetched(request_for(repository, second), scratch, "other") == {"other": b"x"}
    assert await fetched(request_for(repository, second), scratch, "absent") == {}
    await emptied(scratch)


async def test_the_first_of_the_paths_that_is_there_is_enough(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: "one", "other": "x", "directory/x": "y"})
    request = request_for(repository, sha)
    assert await fetched(request, scratch, "absent", PATH, "other", "directory") == {PATH: b"one"}
    assert await fetched(request, scratch, "other", PATH) == {"other": b"x"}
    assert "a directory" in (await refusal(request, scratch, "directory", PATH)).detail


async def test_a_commit_that_no_branch_has_any_more_is_still_had_by_its_id(
    repository: Repository, scratch: Path
) -> None:
    repository.commit({PATH: "base"})
    gone = repository.commit({PATH: "gone"})
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    assert await fetched(request_for(repository, gone), scratch) == {PATH: b"gone"}


async def test_a_sha256_repository_works(tmp_path: Path, scratch: Path) -> None:
    repository = Repository(tmp_path / "modern", object_format="sha256")
    sha = repository.commit({PATH: "long ids"})
    assert len(sha) == 64
    assert await fetched(request_for(repository, sha), scratch) == {PATH: b"long ids"}


async def test_a_path_is_no_pattern(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({"a.kdl": "x", ":(top)b": "y"})
    assert await fetched(request_for(repository, sha), scratch, "*.kdl", ":(top)b") == {":(top)b": b"y"}


async def test_a_checkout_is_the_whole_commit_and_nothing_more(
    repository: Repository, scratch: Path, tmp_path: Path
) -> None:
    repository.commit({"old": "1"})
    sha = repository.commit({"src/main.py": "print()", "run.sh": "#!/bin/sh\n"})
    (repository.path / "run.sh").chmod(0o755)
    sha = repository.commit({"old": "2"})
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    await check_out(request_for(repository, sha), workspace, policy=ANY_PROTOCOL, scratch=scratch)
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "old", "run.sh", "src"]
    assert (workspace / "old").read_text() == "2"
    assert os.access(workspace / "run.sh", os.X_OK)
    assert git_output(workspace, "log", "--format=%H") == sha
    await emptied(scratch)


# -- servers -------------------------------------------------------------------------------------------------------


async def test_a_server_of_plain_files_is_asked_for_the_branch(repository: Repository, scratch: Path) -> None:
    first = repository.commit({PATH: "one"})
    repository.commit({PATH: "two"})
    repository.git("update-server-info")
    with http_server(plain_files(repository.path / ".git")) as port:
        request = request_for(repository, first, repo_url=f"http://127.0.0.1:{port}/")
        assert await fetched(request, scratch) == {PATH: b"one"}
        assert await fetched(request.model_copy(update={"ref": None}), scratch) == {PATH: b"one"}


async def test_a_server_that_can_give_single_files_is_asked_for_no_others(
    repository: Repository, scratch: Path
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    sha = repository.commit({PATH: "small", "large.bin": os.urandom(4_000_000)})
    with http_server(git_backend(repository.path.parent)) as port:
        request = request_for(repository, sha, repo_url=f"http://127.0.0.1:{port}/harbour/.git")
        policy = GitPolicy(protocols=("http",), planning_max_bytes=1_000_000)
        assert await fetched(request, scratch, policy=policy) == {PATH: b"small"}


async def test_a_server_that_filters_but_gives_no_single_files_gives_the_commit(
    repository: Repository, scratch: Path
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    sha = repository.commit({PATH: "small", "other": "x"})
    with http_server(git_backend(repository.path.parent, HTTP_GIT_PROTOCOL="version=0")) as port:
        request = request_for(repository, sha, repo_url=f"http://127.0.0.1:{port}/harbour/.git")
        assert await fetched(request, scratch) == {PATH: b"small"}


async def test_a_server_that_gives_nothing_by_id_is_asked_for_the_ref(
    repository: Repository, scratch: Path
) -> None:
    expected = repository.commit({PATH: "wanted"})
    for number in range(3):
        repository.commit({PATH: f"later {number}"})
    with http_server(git_backend(repository.path.parent, HTTP_GIT_PROTOCOL="version=0")) as port:
        url = f"http://127.0.0.1:{port}/harbour/.git"
        request = request_for(repository, expected, repo_url=url, ref="refs/heads/main")
        assert await fetched(request, scratch) == {PATH: b"wanted"}
        hostile = request.model_copy(update={"ref": "+refs/heads/main:refs/heads/evil"})
        assert await fetched(hostile, scratch) == {PATH: b"wanted"}


async def test_the_git_protocol_works_where_it_is_allowed(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: "by daemon"})
    async with git_daemon(repository.path.parent) as port:
        request = request_for(repository, sha, repo_url=f"git://127.0.0.1:{port}/harbour/.git")
        assert await fetched(request, scratch) == {PATH: b"by daemon"}
        refused = await refusal(request, scratch, policy=GitPolicy())
    assert refused.reason is Reason.COMMIT_NOT_FOUND


# -- failures, and whether they are retried ----------------------------------------------------------------


async def test_a_commit_that_is_nowhere(repository: Repository, scratch: Path) -> None:
    repository.commit({PATH: "x"})
    refused = await refusal(request_for(repository, "0" * 39 + "1"), scratch)
    assert (refused.reason, refused.may_appear) == (Reason.COMMIT_NOT_FOUND, True)
    assert "is not (or no longer) in" in refused.detail


async def test_a_repository_that_is_not_there(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: "x"})
    refused = await refusal(request_for(repository, sha, repo_url=f"{repository.url}-gone"), scratch)
    assert (refused.reason, refused.may_appear) == (Reason.COMMIT_NOT_FOUND, False)


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (404, {}, Reason.COMMIT_NOT_FOUND),
        (401, {"WWW_Authenticate": 'Basic realm="x"'}, Reason.COMMIT_NOT_FOUND),
        (403, {}, Reason.COMMIT_NOT_FOUND),
        (500, {}, Reason.CHECKOUT_FAILED),
        (503, {}, Reason.CHECKOUT_FAILED),
        (302, {"Location": "file:///etc/"}, Reason.CHECKOUT_FAILED),
    ],
    ids=["not found", "asks for a password", "forbidden", "broken", "overloaded", "redirects to a file"],
)
async def test_what_an_http_server_says_decides_whether_it_is_asked_again(
    scratch: Path, status: int, headers: dict[str, str], reason: Reason
) -> None:
    with http_server(answering(status, **headers)) as port:
        refused = await refusal(job_request(repo_url=f"http://127.0.0.1:{port}/harbour"), scratch)
    assert refused.reason is reason


async def test_a_host_that_refuses_the_connection_is_asked_again(scratch: Path) -> None:
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed_port.getsockname()[1]}/harbour"
        refused = await refusal(job_request(repo_url=url), scratch)
    assert refused.reason is Reason.CHECKOUT_FAILED


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/evil",
        "--upload-pack=touch",
        "/etc",
        "git@host:x",
        "gopher://x/y",
        "fd::0",
        "file::///etc",
        "https::ext::sh",
    ],
)
async def test_other_protocols_are_refused_even_if_a_message_could_name_them(scratch: Path, url: str) -> None:
    with pytest.raises(CheckoutFailed) as caught:
        await fetched(job_request().model_copy(update={"repo_url": url}), scratch)
    assert caught.value.reason is Reason.COMMIT_NOT_FOUND
    assert "GIT_PROTOCOLS" in caught.value.detail


# -- hostile repositories ------------------------------------------------------------------------------------------


async def test_a_workflow_that_is_a_symbolic_link_is_refused(repository: Repository, scratch: Path) -> None:
    repository.commit({"real.kdl": "x"})
    (repository.path / ".solstice").mkdir()
    (repository.path / PATH).symlink_to("/etc/passwd")
    (repository.path / "linked").symlink_to("/etc")
    sha = repository.commit({})
    refused = await refusal(request_for(repository, sha), scratch)
    assert refused.reason is Reason.INVALID_WORKFLOW
    assert "symbolic link" in refused.detail
    assert await fetched(request_for(repository, sha), scratch, "linked/passwd") == {}


async def test_a_workflow_that_is_a_directory_is_refused(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({f"{PATH}/x": "y"})
    assert "a directory" in (await refusal(request_for(repository, sha), scratch)).detail


async def test_submodules_are_left_alone(repository: Repository, scratch: Path, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"x": "y"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", other.url, "below")
    sha = repository.commit({PATH: "x"})
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    await check_out(request_for(repository, sha), workspace, policy=ANY_PROTOCOL, scratch=scratch)
    assert list((workspace / "below").iterdir()) == []
    assert "a submodule" in (await refusal(request_for(repository, sha), scratch, "below")).detail


async def test_configuration_hooks_and_filters_of_users_are_not_run(
    repository: Repository, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, evil = tmp_path / "home", tmp_path / "evil"
    hooks = home / "template" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {evil}\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[init]\n\ttemplateDir = {home}/template\n[core]\n\thooksPath = {hooks}\n"
        f'[filter "lfs"]\n\tsmudge = touch {evil}\n\trequired = true\n'
        f'[url "file:///nowhere/"]\n\tinsteadOf = file:///\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(home / "template"))
    sha = repository.commit({".gitattributes": "*.bin filter=lfs\n", "a.bin": "data", PATH: "x"})
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    await check_out(request_for(repository, sha), workspace, policy=ANY_PROTOCOL, scratch=scratch)
    assert (workspace / "a.bin").read_text() == "data"
    assert not evil.exists()


async def test_objects_that_no_git_would_write_are_refused(repository: Repository, scratch: Path) -> None:
    repository.commit({PATH: "x"})
    blob = bytes.fromhex(repository.git("rev-parse", f"HEAD:{PATH}"))
    tree = git_output(
        repository.path,
        *("hash-object", "-t", "tree", "--literally", "-w", "--stdin"),
        given=b"100644 .git\0" + blob,
    )
    sha = repository.git("commit-tree", "-m", "evil", tree)
    refused = await refusal(request_for(repository, sha), scratch)
    assert refused.reason is Reason.COMMIT_UNUSABLE


async def test_a_commit_larger_than_allowed_is_given_up(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: "x", "large.bin": os.urandom(3_000_000)})
    policy = GitPolicy(
        protocols=("file",), planning_max_bytes=1_000_000, environment=ANY_PROTOCOL.environment
    )
    refused = await refusal(request_for(repository, sha), scratch, policy=policy)
    assert refused.reason is Reason.COMMIT_UNUSABLE
    assert "on disk" in refused.detail


async def test_a_huge_workflow_file_is_read_only_so_far(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: b"x" * 5_000_000})
    assert len((await fetched(request_for(repository, sha), scratch))[PATH]) == 1024 * 1024


@pytest.mark.skipif(
    os.geteuid() != 0, reason="not asked for: only root can give a repository to somebody else"
)
async def test_a_local_repository_of_another_user_is_read(repository: Repository, scratch: Path) -> None:
    sha = repository.commit({PATH: "theirs"})
    for path in (repository.path, *repository.path.rglob("*")):
        os.chown(path, 4242, 4242)
    assert await fetched(request_for(repository, sha), scratch) == {PATH: b"theirs"}


# -- servers that hang ---------------------------------------------------------------------------------------------


@pytest.fixture
def mute_server() -> Iterator[tuple[int, Callable[[], socket.socket]]]:
    """A port that accepts connections and answers nothing, and a wait for the first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server.getsockname()[1], lambda: server.accept()[0]


def git_processes() -> set[int]:
    """The git processes that this one has started."""
    found = set()
    for pid in descendants(os.getpid()):
        try:
            if Path(f"/proc/{pid}/comm").read_text().startswith("git"):
                found.add(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("protocol", ["http", "git"])
async def test_a_server_that_says_nothing_is_left_after_the_time_there_is(
    scratch: Path, mute_server: tuple[int, Callable[[], socket.socket]], protocol: str
) -> None:
    port, _ = mute_server
    policy = GitPolicy(protocols=("http", "git"), planning_timeout_seconds=0.5)
    url = f"{protocol}://127.0.0.1:{port}/harbour"
    refused = await refusal(job_request(repo_url=url), scratch, policy=policy)
    assert refused.reason is Reason.CHECKOUT_FAILED
    assert "took longer than 0.5 s" in refused.detail
    assert git_processes() == set()


async def test_who_cancels_a_checkout_leaves_no_git_behind(
    scratch: Path, mute_server: tuple[int, Callable[[], socket.socket]]
) -> None:
    port, connected = mute_server
    task = asyncio.ensure_future(fetched(job_request(repo_url=f"http://127.0.0.1:{port}/x"), scratch))
    with await asyncio.to_thread(connected):
        assert git_processes()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert git_processes() == set()
    await emptied(scratch)
