"""A commit, or a few files of it, from the repository that a request names. What can go wrong is sorted here.

| what happened | reason | tried again |
|---|---|---|
| protocol not allowed, no such repository, credentials asked for, commit not there | COMMIT_NOT_FOUND | no |
| the workflow path is a symbolic link, a directory or a submodule | INVALID_WORKFLOW | no |
| host unreachable, time or disk limit, broken transfer, git missing, anything else | CHECKOUT_FAILED | yes |
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1

from solstice_orchestrator.git import CheckoutFailed, Git, GitPolicy, GitResult, last_words
from solstice_orchestrator.jobs import Reason

MAX_FILE_BYTES: Final = 1024 * 1024
"""Files are read as far as this; who wants them smaller says so when reading them."""
REF_DEPTH: Final = 100

_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
_SHA256_LENGTH: Final = 64
_REF: Final = re.compile(r"refs/[A-Za-z0-9._/@-]{1,250}")
_NOT_BY_ID: Final = re.compile(
    r"not our ref|unadvertised object|couldn't find remote ref|dumb http transport does not support|"
    r"does not support shallow|no such remote ref|unable to find remote ref",
    re.IGNORECASE,
)
_NOT_THERE: Final = re.compile(
    r"repository '.*' not found|does not appear to be a git repository|repository not found|"
    r"could not read Username|could not read Password|Authentication failed|terminal prompts disabled|"
    r"Permission denied \(|returned error: 40[134]|transport '.*' not allowed|not exported|access denied|"
    r"does not exist",
    re.IGNORECASE,
)


async def fetch_files(
    request: JobRequestV1, paths: Sequence[str], *, policy: GitPolicy, scratch: Path
) -> Mapping[str, bytes]:
    """Those of the files that the commit holds, without its other files where the server can do that.

    `scratch` is a directory for temporary ones. Raises CheckoutFailed.
    """
    async with _bounded(policy.planning_timeout_seconds, request), _temporary(scratch) as home:
        git = await _repository(request, home / "partial", home, policy, policy.planning_max_bytes)
        by_id = await _fetch_by_id(git, request, "--filter=blob:none")
        if by_id:
            files = await _files(git, request, paths)
            if files is not None:
                return files
        # A server that gives no single files, or nothing by id. Anew, since git would go on asking it for the rest.
        git = await _repository(request, home / "whole", home, policy, policy.planning_max_bytes)
        if not by_id or not await _fetch_by_id(git, request):
            await _fetch_by_ref(git, request)
        return await _files(git, request, paths) or {}


async def check_out(request: JobRequestV1, directory: Path, *, policy: GitPolicy, scratch: Path) -> None:
    """Put the commit's files, and a repository of just this commit, into the empty `directory`.

    Raises CheckoutFailed.
    """
    async with _bounded(policy.timeout_seconds, request), _temporary(scratch) as home:
        git = await _repository(request, directory, home, policy, policy.max_bytes)
        if not await _fetch_by_id(git, request):
            await _fetch_by_ref(git, request)
        done = await git.run("checkout", "--quiet", "--force", "--detach", request.commit_sha)
        if done.returncode != 0:
            raise CheckoutFailed(
                Reason.CHECKOUT_FAILED, f"the commit cannot be checked out: {last_words(done.stderr)}"
            )


async def _repository(
    request: JobRequestV1, directory: Path, home: Path, policy: GitPolicy, max_bytes: int
) -> Git:
    """A new repository in `directory` that knows where to fetch from, and holds nothing yet."""
    scheme = request.repo_url.partition("://")[0]
    if scheme not in policy.protocols:
        raise CheckoutFailed(
            Reason.COMMIT_NOT_FOUND,
            f"the protocol {scheme!r} of {request.repo_url} is not allowed here; GIT_PROTOCOLS allows "
            f"{', '.join(policy.protocols)}",
        )
    git = Git(policy, directory, home, max_bytes)
    form = "sha256" if len(request.commit_sha) == _SHA256_LENGTH else "sha1"
    await _must(git, "init", "--quiet", "--template=", f"--object-format={form}")
    await _must(git, "config", "remote.origin.url", request.repo_url)
    return git


async def _fetch_by_id(git: Git, request: JobRequestV1, *options: str) -> bool:
    """Bring just the commit; False when the server gives nothing by its id."""
    fetched = await git.run(*_FETCH, *options, "--depth=1", "--end-of-options", "origin", request.commit_sha)
    if fetched.returncode != 0 and not _NOT_BY_ID.search(fetched.stderr):
        raise _failure(request, fetched)
    return fetched.returncode == 0


async def _fetch_by_ref(git: Git, request: JobRequestV1) -> None:
    """Bring the commit with its ref, else with every branch."""
    for wider in _wider(request):
        fetched = await git.run(*_FETCH, *wider)
        if fetched.returncode != 0 and not _NOT_BY_ID.search(fetched.stderr):
            raise _failure(request, fetched)
        there = await git.run("cat-file", "-e", f"{request.commit_sha}^{{commit}}")
        if there.returncode == 0:
            return
    raise CheckoutFailed(
        Reason.COMMIT_NOT_FOUND,
        f"the commit {request.commit_sha} is not (or no longer) in {request.repo_url}",
        may_appear=True,
    )


def _wider(request: JobRequestV1) -> Sequence[tuple[str, ...]]:
    """What else to ask for when the server gives nothing by id, the cheapest first."""
    by_ref: list[tuple[str, ...]] = []
    if request.ref and _REF.fullmatch(request.ref) and ".." not in request.ref:
        by_ref = [
            (f"--depth={REF_DEPTH}", "--end-of-options", "origin", request.ref),
            ("--end-of-options", "origin", request.ref),
        ]
    return [*by_ref, ("--end-of-options", "origin", "+refs/heads/*:refs/remotes/origin/*")]


async def _files(git: Git, request: JobRequestV1, paths: Sequence[str]) -> Mapping[str, bytes] | None:
    """Those of the files that are there; None when the server does not give single files."""
    files = {}
    for path in paths:
        name = await _object(git, request, path)
        if name is None:
            continue
        content = await git.run("cat-file", "blob", name, max_output=MAX_FILE_BYTES)
        if content.returncode != 0:
            if _NOT_BY_ID.search(content.stderr):
                return None
            raise _failure(request, content)
        files[path] = content.stdout
    return files


async def _object(git: Git, request: JobRequestV1, path: str) -> str | None:
    """The id of a plain file's content, None when there is no such path."""
    listed = await git.run("ls-tree", "-z", "--full-tree", request.commit_sha, "--", path)
    if listed.returncode != 0:
        raise _failure(request, listed)
    entry, _, _ = listed.stdout.partition(b"\x00")
    if not entry:
        return None
    mode, kind, name = entry.partition(b"\t")[0].decode().split()
    if kind != "blob" or mode == "120000":
        what = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, "a directory")
        raise CheckoutFailed(
            Reason.INVALID_WORKFLOW, f"{path} is {what} in this commit; it must be a plain file"
        )
    return name


async def _must(git: Git, *arguments: str) -> None:
    done = await git.run(*arguments)
    if done.returncode != 0:
        raise CheckoutFailed(Reason.CHECKOUT_FAILED, f"git {arguments[0]} failed: {last_words(done.stderr)}")


def _failure(request: JobRequestV1, result: GitResult) -> CheckoutFailed:
    said = last_words(result.stderr) or f"git ended with {result.returncode} and said nothing"
    if _NOT_THERE.search(result.stderr):
        return CheckoutFailed(
            Reason.COMMIT_NOT_FOUND,
            f"{request.repo_url} cannot be read: it is not there, or not for us without credentials ({said})",
        )
    return CheckoutFailed(Reason.CHECKOUT_FAILED, f"fetching from {request.repo_url} failed: {said}")


@asynccontextmanager
async def _bounded(seconds: float, request: JobRequestV1) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise CheckoutFailed(
            Reason.CHECKOUT_FAILED, f"fetching from {request.repo_url} took longer than {seconds:g} s"
        ) from None


@asynccontextmanager
async def _temporary(scratch: Path) -> AsyncIterator[Path]:
    await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True, mode=0o700)
    home = Path(tempfile.mkdtemp(prefix="git-", dir=scratch))
    try:
        yield home
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
