"""The process that removes a directory tree, in time proportional to its size.

Run as `python -I -S workspace_removal.py PATH`, with the standard library alone. Its exit code is 0 once PATH is gone, else
the number (errno) of an error.

The time of `rm` grows with the square of a tree's depth: a job can make a tree that takes it hours. Here each directory
moves to the top of the tree before it is opened, so that no path is longer than two names. Names are looked up in open
directories, and no symbolic link is followed, even if other processes change the tree meanwhile.
"""

import errno
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROUNDS: Final = 5
"""How often to begin again while another process adds to the tree."""
OWNER_ONLY: Final = 0o700
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def main() -> int:
    """Remove the tree; the exit code says why not."""
    above, name = os.path.split(sys.argv[1])
    directory = os.open(above, _DIRECTORY)
    error = 0
    for _ in range(ROUNDS):
        error = WorkspaceRemoval(directory, name).run()
        if error == 0:
            break
    return error


class WorkspaceRemoval:
    """One walk through the tree `name` in the open directory `above`."""

    def __init__(self, above: int, name: str) -> None:
        self._above, self._name = above, name
        self._prefix, self._moved = f".{secrets.token_hex(8)}-", 0
        self._waiting: list[str] = []
        """Names of directories at the top of the tree that are not yet emptied."""
        self._error = 0

    def run(self) -> int:
        """Remove all that can be removed; return an error's number, or 0 without one."""
        top = self._opened(self._above, self._name)
        if top is not None:
            try:
                self._empty(top, top)
                while self._waiting:
                    self._remove_from_top(top, self._waiting.pop())
            finally:
                os.close(top)
            self._succeeds(os.rmdir, self._name, self._above)
        return self._error

    def _remove_from_top(self, top: int, name: str) -> None:
        directory = self._opened(top, name)
        if directory is not None:
            try:
                self._empty(directory, top)
            finally:
                os.close(directory)
            self._succeeds(os.rmdir, name, top)

    def _empty(self, directory: int, top: int) -> None:
        """Remove the files of a directory, and move its directories to the top."""
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    self._succeeds(os.unlink, entry.name, directory)
                elif directory == top:
                    self._waiting.append(entry.name)
                else:
                    self._move(directory, entry.name, top)

    def _move(self, directory: int, name: str, top: int) -> None:
        moved = f"{self._prefix}{self._moved}"
        self._moved += 1
        try:
            # To be moved, a directory must be writable: its entry `..` changes.
            _make_usable(directory, name)
            os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=top)
        except OSError as error:
            self._note(error)
        else:
            self._waiting.append(moved)

    def _opened(self, above: int, name: str) -> int | None:
        """Open a directory; remove what has its name but is none."""
        try:
            _make_usable(above, name)
            return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                self._succeeds(os.unlink, name, above)
            else:
                self._note(error)
        return None

    def _succeeds(self, remove: "Callable[..., None]", name: str, above: int) -> None:
        try:
            remove(name, dir_fd=above)
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno != errno.ENOENT:
            self._error = error.errno or errno.EIO


def _make_usable(above: int, name: str) -> None:
    """Give the owner of a directory all rights on it; raises NotADirectoryError for anything else."""
    if hasattr(os, "O_PATH"):
        # Looked up once, without following a link: chmod(2) of a name would follow one.
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            if os.fstat(found).st_mode & OWNER_ONLY != OWNER_ONLY:
                Path(f"/proc/self/fd/{found}").chmod(OWNER_ONLY)
        finally:
            os.close(found)
    else:
        os.chmod(name, OWNER_ONLY, dir_fd=above, follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
