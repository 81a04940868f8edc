"""Read which submodules a commit has, and check their paths and URLs."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.submodule_urls import submodule_url
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitResult, printable, stderr_tail
from solstice_orchestrator.git.failures import reason_of_local
from solstice_orchestrator.git.objects.tree_entries import entries_of

MAX_SUBMODULES: Final = 256
"""The most in one checkout, those of submodules included."""
_LIST: Final = ".gitmodules"
MAX_LIST_BYTES: Final = 256 * 1024
_GITLINK: Final = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """A submodule of a commit."""

    path: str
    """Below the checkout."""
    repo_url: str
    commit_sha: str


async def submodules_of(git: Git, repo_url: str, sha: str) -> Sequence[Submodule]:
    """Return the submodules of a commit that is checked out; raises CheckoutFailed."""
    entry = (await entries_of(git, sha, [_LIST])).get(_LIST)
    if entry is None:
        return ()
    if not entry.is_plain_file:
        raise unusable(f"{_LIST} is {entry.kind}; it must be a plain file")
    listed = await git.run(
        *("config", "--null", "--blob", f"{sha}:{_LIST}", "--get-regexp", r"^submodule\..*\.(path|url)$"),
        max_output=MAX_LIST_BYTES + 1,
    )
    if listed.returncode != 0 and listed.stderr:
        raise _unreadable(listed)
    if len(listed.stdout) > MAX_LIST_BYTES:
        raise unusable(f"{_LIST} is longer than {MAX_LIST_BYTES // 1024} KiB")
    urls = _read(listed.stdout.decode("utf-8", "surrogateescape"))
    if len(urls) > MAX_SUBMODULES:
        raise unusable(f"{_LIST} names more than {MAX_SUBMODULES} submodules")
    links = await _links(git, sha, list(urls))
    return [
        Submodule(path=path, repo_url=_url(repo_url, path, urls[path]), commit_sha=commit_sha)
        for path, commit_sha in links.items()
    ]


def unusable(detail: str) -> CheckoutFailed:
    """Return the failure of a commit whose submodules cannot be checked out."""
    return CheckoutFailed(Reason.COMMIT_UNUSABLE, printable(detail))


def _unreadable(read: GitResult[bytes]) -> CheckoutFailed:
    """Return the failure of a command that reads what was fetched: mostly the commit's own."""
    reason = reason_of_local(read.errors, read.returncode)
    return CheckoutFailed(
        Reason.COMMIT_UNUSABLE if reason is Reason.CHECKOUT_FAILED else reason,
        f"{_LIST} cannot be read: {stderr_tail(read.stderr)}",
    )


def _read(listed: str) -> Mapping[str, str]:
    """Return the URL of each path; empty where none is given."""
    found: dict[str, dict[str, str]] = {}
    for item in filter(None, listed.split("\0")):
        key, _, value = item.partition("\n")
        name, _, last = key.rpartition(".")
        found.setdefault(name, {})[last] = value
    urls = {each["path"].removesuffix("/"): each.get("url", "") for each in found.values() if "path" in each}
    for path in urls:
        if posixpath.normpath(path) != path or path.startswith(("/", "../", "-")) or path in {".", ".."}:
            raise unusable(f"{_LIST} names {path[:200]!r}, which is no path within the repository")
    return urls


async def _links(git: Git, sha: str, paths: Sequence[str]) -> Mapping[str, str]:
    """Return the commits that the tree names at these paths, where there are any."""
    if not paths:
        return {}
    listed = await git.run(*("ls-tree", "-z", "--full-tree", sha, "--", *paths), max_output=len(paths) * 8192)
    if listed.returncode != 0:
        raise _unreadable(listed)
    links = {}
    for line in filter(None, listed.stdout.decode("utf-8", "surrogateescape").split("\0")):
        entry, _, path = line.partition("\t")
        mode, _, commit_sha = entry.split(" ")
        if mode == _GITLINK:
            links[path] = commit_sha
    return links


def _url(repo_url: str, path: str, written: str) -> str:
    if not written:
        raise unusable(f"the submodule {path[:200]} has no URL in {_LIST}")
    try:
        return submodule_url(repo_url, written)
    except ValueError as error:
        raise unusable(f"the submodule {path[:200]} is not fetched: its URL {error}") from None
