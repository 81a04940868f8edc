"""Reads folders in which other processes create and remove files meanwhile.

`Path.rglob` fails when a directory that it is about to read goes; `os.walk` passes over it.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def files_in_use(folder: Path) -> Iterator[Path]:
    """Each regular file that was below `folder` when its directory was read."""
    for directory, _, names in os.walk(folder):
        for name in names:
            if (path := Path(directory, name)).is_file():
                yield path


def contents_in_use(folder: Path) -> dict[Path, bytes]:
    """The content of each file below `folder` that could still be read."""
    contents = {}
    for path in files_in_use(folder):
        try:
            contents[path] = path.read_bytes()
        except FileNotFoundError:
            continue
    return contents
