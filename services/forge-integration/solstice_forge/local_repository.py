"""What `enqueue` reads of a repository of this machine: its commit, its branch, and what is not committed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.errors import ConfigurationError

GIT_SECONDS: Final = 30
_INSTEAD: Final = "name a repository with --repo-url, and its commit with --commit-sha"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a repository of this machine."""

    folder: Path
    sha: str
    ref: str | None
    """The branch whose newest commit it is, when that branch is checked out."""
    dirty: bool
    """Whether files differ from what is committed."""


def commit_of(folder: Path, revision: str | None) -> Commit:
    """The commit that `revision` names there (HEAD when None); ConfigurationError says what is missing."""
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
    return Commit(
        folder=folder,
        sha=sha,
        ref=_git(folder, "symbolic-ref", "--quiet", "HEAD") if at_head else None,
        dirty=at_head and bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    )


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
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
