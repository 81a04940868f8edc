"""Holds the files of a small checkout in one piece."""

import struct
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.processes.small_copies import CheckoutFiles

MAX_ENTRIES: Final = 256
"""The most files and directories of a small checkout, those of its repository included."""
MAX_CHECKOUT_BYTES: Final = 1024**2
ENTRY_BYTES: Final = 512
"""What is counted for each file and directory beside its content."""
INDEX_HEADER: Final = struct.Struct(">4sII")
INDEX_ID_OFFSET: Final = 40
"""Where in an entry of the index the object's id stands."""


@dataclass(frozen=True, slots=True)
class CheckoutCopy:
    """A whole small checkout."""

    packed: bytes
    """For `write_checkout`."""
    size_bytes: int

    @classmethod
    def of(cls, files: CheckoutFiles) -> "CheckoutCopy":
        """Return the copy of a checkout with these files."""
        size_bytes = sum(ENTRY_BYTES + len(file.content) for file in files.files) + len(files.git_index)
        return cls(files.packed(), size_bytes)


def next_entry_at(at: int, end_of_name: int) -> int:
    """Return where the entry after the one at `at` begins.

    Each entry is followed by one to eight NULs, up to a multiple of eight.
    """
    return at + ((end_of_name - at) // 8 + 1) * 8
