"""Makes directories and files for their owner alone, under any umask."""

import os
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


def private_opener(path: str, flags: int) -> int:
    """Opens a file for `open`; a new one is for its owner alone."""
    return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)
