"""Removes small directory trees, in the orchestrator and in forked supervisors.

With the standard library alone, since a process without our packages loads it.
"""

import os
from itertools import islice
from typing import Final

SMALL_TREE: Final = 1000
"""Files and directories of a tree that is removed without a process of its own."""
SMALL_DEPTH: Final = 32
"""How deep such a tree may be."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def remove_small_tree(path: str) -> bool:
    """Remove a tree of few files; return False when it is still there.

    This is cheaper than to start a process. A large tree would keep the orchestrator's interpreter from other work. A
    supervisor removes the one of its job: each system call here lets threads take turns, and it has only one.
    """
    try:
        above = os.open(os.path.dirname(path), _DIRECTORY)  # noqa: PTH120  a forked process would have to copy what pathlib uses
        try:
            return _emptied(above, os.path.basename(path), SMALL_TREE, SMALL_DEPTH) is not None  # noqa: PTH119  the same
        finally:
            os.close(above)
    except OSError:
        # It may have been removed already, by the supervisor of its job.
        return not os.path.lexists(path)


def _emptied(above: int, name: str, room: int, depth: int) -> int | None:
    """Remove a directory in the open directory `above`, with what is in it.

    Return how many more names there is room for, None without room for its own. No symbolic link is followed.
    """
    directory = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        with os.scandir(directory) as entries:
            listed = list(islice(entries, room + 1))
        left: int | None = room - len(listed)
        for entry in listed:
            if left is None or left < 0 or depth == 0:
                return None
            if entry.is_dir(follow_symlinks=False):
                left = _emptied(directory, entry.name, left, depth - 1)
            else:
                os.unlink(entry.name, dir_fd=directory)
    finally:
        os.close(directory)
    if left is not None:
        os.rmdir(name, dir_fd=above)
    return left
