"""Makes real git repositories for tests, with the machine's git and no configuration."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.processes.small_copies import write_checkout

GIT_ENVIRONMENT: Mapping[str, str] = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # Else each commit starts another process, which finds nothing to do.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_AUTHOR_NAME": "Mika Holm",
    "GIT_AUTHOR_EMAIL": "mika@harbour.example",
    "GIT_COMMITTER_NAME": "Mika Holm",
    "GIT_COMMITTER_EMAIL": "mika@harbour.example",
    "LC_ALL": "C",
}


class Repository:
    """A repository in `path`, on its branch main."""

    def __init__(self, path: Path, *, object_format: str = "sha1") -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", f"--object-format={object_format}")

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env=GIT_ENVIRONMENT,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str | bytes], message: str = "Change files") -> str:
        """Write the files, commit everything, and return the commit's id."""
        for name, content in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def commit_submodules(self, submodules: Mapping[str, tuple[str, str]], *, list_text: str = "") -> str:
        """Commit submodules, each a URL and a commit by its path.

        `list_text` replaces the content of .gitmodules.
        """
        listed = "".join(
            f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n' for path, (url, _) in submodules.items()
        )
        (self.path / ".gitmodules").write_text(list_text or listed)
        self.git("add", ".gitmodules")
        for path, (_, sha) in submodules.items():
            self.git("update-index", "--add", "--cacheinfo", f"160000,{sha},{path}")
        self.git("commit", "--quiet", "--message", "Name submodules")
        return self.git("rev-parse", "HEAD")


def files_below(place: Path) -> dict[str, tuple[int, bytes]]:
    """The mode and content of everything below a directory, by its path there."""
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            os.fsencode(path.readlink())
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b"",
        )
        for path in place.rglob("*")
    }


def written_copy(copy: CheckoutCopy | None, place: Path) -> bool:
    """Write a small checkout, if it is there; return whether it was."""
    if copy is not None:
        write_checkout(copy.packed, str(place))
    return copy is not None


async def emptied(directory: Path) -> None:
    """Wait until nothing is left in the directory; TimeoutError when something stays."""
    async with asyncio.timeout(30):
        while _entries(directory):  # noqa: ASYNC110  a disk sends no notification
            await asyncio.sleep(0.01)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())
