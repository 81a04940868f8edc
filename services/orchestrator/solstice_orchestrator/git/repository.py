"""Write an empty repository with a remote, and measure what is in a repository."""

import contextlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

SHA256_LENGTH: Final = 64
_CORE: Final = {
    True: "\tbare = true\n",
    False: "\tbare = false\n\tfilemode = true\n\tlogallrefupdates = true\n",
}


def write_repository(git_dir: Path, *, url: str, object_format: str, bare: bool) -> None:
    """Make the directory an empty repository whose remote `origin` is `url`.

    It is as `git init` and `git config` would write it.
    """
    for below in ("objects", "refs"):
        (git_dir / below).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    sha256 = object_format == "sha256"
    (git_dir / "config").write_text(
        f"[core]\n\trepositoryformatversion = {int(sha256)}\n{_CORE[bare]}"
        + ("[extensions]\n\tobjectFormat = sha256\n" if sha256 else "")
        + f'[remote "origin"]\n\turl = {quoted(url)}\n',
        encoding="utf-8",
    )


def object_format(sha: str) -> str:
    """Return the format of object ids in the repository of this full commit id."""
    return "sha256" if len(sha) == SHA256_LENGTH else "sha1"


def quoted(value: str) -> str:
    """Quote a text as a value in a git configuration file (git-config(1), "Syntax").

    Raises ValueError for NUL and carriage return, which cannot be quoted.
    """
    if "\0" in value or "\r" in value:
        raise ValueError("a value of a git configuration holds neither NUL nor carriage return")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


LEAST_FILE_BYTES: Final = 4096
"""The least disk space of a file, even an empty one.

It needs a block or an inode, and a disk has limited numbers of both.
"""


FEW_ENTRIES: Final = 64
"""So few entries are measured without a thread, which would wait for the interpreter at each of them."""


def has_few_entries(directory: Path) -> bool:
    """Return whether at most FEW_ENTRIES files and directories lie below."""
    return next(islice(_entries(directory), FEW_ENTRIES, None), None) is None


def directory_bytes(directory: Path) -> int:
    """Return the disk space of all files below, approximately while others write there."""
    total = 0
    for entry in _entries(directory):
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                total += max(LEAST_FILE_BYTES, entry.stat(follow_symlinks=False).st_size)
    return total


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    todo = [str(directory)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                yield entry
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
