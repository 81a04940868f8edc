"""Makes directories and files for their owner alone, under any umask."""

import os
import stat
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600
OWNERS_DIRECTORY: Final = 0o700


def make_private_directory(path: Path) -> None:
    """Make a directory, and missing ones above it, for their owner alone.

    Who may write to a directory above could put another in its place.
    """
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            each.mkdir(mode=OWNERS_DIRECTORY, exist_ok=True)


def restore_private_directory(path: Path, *, above: int = 0) -> None:
    """Make a directory, and so many above it, usable for their owner again.

    Another process of the owner may have removed one, taken its rights away, or put a file in its place.
    """
    for each in (*reversed(path.parents[:above]), path):
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            mode = 0
        if stat.S_ISDIR(mode):
            if mode & OWNERS_DIRECTORY != OWNERS_DIRECTORY:
                each.chmod(stat.S_IMODE(mode) | OWNERS_DIRECTORY)
        else:
            each.unlink(missing_ok=True)
            make_private_directory(each)


def private_opener(path: str, flags: int) -> int:
    """Opens a file for `open`; a new one is for its owner alone."""
    return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)
