"""Reads a local repository: its commit, branch, remote and uncommitted changes."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_common.values.repo_urls import REPO_URL_SCHEMES, from_scp, without_user

GIT_SECONDS: Final = 30
_REMOTE_SCHEMES: Final = REPO_URL_SCHEMES - {"file"}
_OF_GIT: Final = frozenset(
    {
        *("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "LANG", "LANGUAGE"),
        *("LD_LIBRARY_PATH", "DEVELOPER_DIR"),  # how some systems find git's own programs
        "SUDO_UID",  # whose repositories root may read under sudo
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_EXEC_PATH"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
        *("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM"),
    }
)
_OF_GIT_PREFIXES: Final = ("GIT_CONFIG", "LC_")
_INSTEAD: Final = "name a repository with --repo-url, and its commit with --commit-sha"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a repository on this machine."""

    folder: Path
    """The top folder of the repository."""
    sha: str
    ref: str | None
    """The branch whose newest commit it is, when that branch is checked out."""
    dirty: bool
    """Whether files differ from what is committed."""
    untracked: int
    """The number of files that git neither tracks nor ignores; counted only beside such changes."""


def commit_of(folder: Path, revision: str | None) -> Commit:
    """Return the commit of `revision` (HEAD when None); ConfigurationError says what is missing."""
    if not folder.is_dir():
        raise ConfigurationError(f"--repo-url {str(folder)!r} is neither a URL nor a folder of this machine")
    if _git(folder, "rev-parse", "--git-dir") is None:
        raise ConfigurationError(f"{folder.resolve()} is no git repository: {_INSTEAD}")
    sha = _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision or 'HEAD'}^{{commit}}"
    )
    if sha is None:
        what = "no commit yet" if revision is None else f"no commit {revision!r}, or several that begin so"
        raise ConfigurationError(f"{folder.resolve()} has {what}")
    at_head = sha == _git(folder, "rev-parse", "HEAD")
    top = top_folder(folder)
    dirty = at_head and bool(_git(top, "status", "--porcelain", "--untracked-files=no"))
    new = _git(top, "ls-files", "-z", "--others", "--exclude-standard") if dirty else None
    return Commit(
        folder=top,
        sha=sha,
        ref=_git(folder, "symbolic-ref", "--quiet", "HEAD") if at_head else None,
        dirty=dirty,
        untracked=(new or "").count("\0"),
    )


def check_ref(commit: Commit, ref: str) -> None:
    """ConfigurationError when neither the repository nor a remote has such a branch or tag."""
    candidates = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"]
    names = (_git(commit.folder, "remote") or "").splitlines()
    branch = ref.removeprefix("refs/heads/")
    candidates += [f"refs/remotes/{name}/{branch}" for name in names]
    if all(
        _git(commit.folder, "show-ref", "--verify", "--quiet", "--", candidate) is None
        for candidate in candidates
    ):
        raise ConfigurationError(
            f"--ref {ref!r}: {commit.folder} has no such branch or tag; 'git branch' and 'git tag' list those there are"
        )


def top_folder(folder: Path) -> Path:
    """Return the top folder of the repository that contains the folder.

    The folder itself for a bare one, and without a repository.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else folder.resolve()


def as_url(repository: str) -> str:
    """Return the URL of a repository as a person typed it.

    That is a folder of this machine, `git@host:path`, or a URL, which stays unchanged.
    """
    if "://" not in repository and Path(repository).is_dir():
        return top_folder(Path(repository)).as_uri()
    return from_scp(repository) or repository


def remote_url(commit: Commit) -> str | None:
    """Return the URL of the remote that other machines can reach; None without one.

    That is the remote of the branch, else `origin`, else the only one. ConfigurationError when the commit is on no
    branch of it, as of the last fetch or push.
    """
    names = (_git(commit.folder, "remote") or "").splitlines()
    branch = (commit.ref or "").removeprefix("refs/heads/")
    own = _git(commit.folder, "config", f"branch.{branch}.remote") if branch else None
    name = next((one for one in (own, "origin", *names[: len(names) == 1]) if one in names), None)
    typed = _git(commit.folder, "remote", "get-url", name) if name else None
    url = typed and without_user(from_scp(typed) or typed)
    if not name or not url or url.partition("://")[0] not in _REMOTE_SCHEMES:
        return None
    on = _git(commit.folder, "for-each-ref", "--count=1", f"--contains={commit.sha}", f"refs/remotes/{name}")
    if not on:
        raise ConfigurationError(
            f"the commit {commit.sha[:12]} is on no branch of the remote {name!r} ({url}): push it first. To enqueue it "
            f"nevertheless, name both: --repo-url {url} --commit-sha {commit.sha}; or --repo-url . for this folder"
        )
    return url


def git_environment() -> dict[str, str]:
    """Return the variables that git needs to read a local repository.

    Other processes of this user can read git's environment, and a repository's configuration may name programs that
    git starts. So git gets none of our secrets; to a remote it does not connect.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _OF_GIT or name.startswith(_OF_GIT_PREFIXES)
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=git_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=GIT_SECONDS,
        )
    except FileNotFoundError:
        raise ConfigurationError(f"git is not on the PATH: install it, or {_INSTEAD}") from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"git {arguments[0]} in {folder} took longer than {GIT_SECONDS} s") from None
    return None if done.returncode else done.stdout.strip()
