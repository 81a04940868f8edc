"""Write an empty repository with a remote, measure what is in one, and configure git."""

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

CONFIG: Final = """\
[core]
\thooksPath = /dev/null
\tfsync = none
\tfsmonitor = false
\taskPass = true
\tbigFileThreshold = 16m
\tdeltaBaseCacheLimit = 16m
\tpackedGitLimit = 128m
\tpackedGitWindowSize = 16m
[pack]
\tthreads = 2
[credential]
\thelper =
[protocol "ext"]
\tallow = never
[transfer]
\tfsckObjects = true
\tbundleURI = false
[fetch "fsck"]
\tzeroPaddedFilemode = ignore
\tmissingSpaceBeforeDate = ignore
\tbadTimezone = ignore
[fetch]
\trecurseSubmodules = false
\tunpackLimit = 1
[submodule]
\trecurse = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[http]
\tfollowRedirects = false
\tlowSpeedLimit = 100
\tlowSpeedTime = 30
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
"""
"""The only configuration of git. That of the machine and of the service user is not read.

Old repositories have the three harmless kinds of error that `fetch.fsck` ignores. Nothing that git writes here
has to survive a power failure, so nothing waits for the disk (`fsync`).
"""

OWNERSHIP: Final = "[safe]\n\tdirectory = *\n"
"""Lets git read repositories of the machine's other users. It is used where file:// is allowed."""


def write_repository(git_dir: Path, *, url: str, object_format: str, bare: bool) -> None:
    """Make the directory an empty repository whose remote `origin` is `url`.

    It is as `git init` and `git config` would write it.
    """
    for below in ("objects", "refs"):
        (git_dir / below).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    config = repository_config(url=url, object_format=object_format, bare=bare)
    (git_dir / "config").write_text(config, encoding="utf-8")


def repository_config(*, url: str, object_format: str, bare: bool) -> str:
    """Return the configuration of a repository whose remote `origin` is `url`."""
    sha256 = object_format == "sha256"
    return (
        f"[core]\n\trepositoryformatversion = {int(sha256)}\n{_CORE[bare]}"
        + ("[extensions]\n\tobjectFormat = sha256\n" if sha256 else "")
        + f'[remote "origin"]\n\turl = {quoted(url)}\n'
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
