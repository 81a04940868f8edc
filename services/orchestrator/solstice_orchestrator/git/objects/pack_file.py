"""Reads objects of a small pack without git.

To start git costs more than to read them. The pack is one that git has just written and checked. What is unusual in it
is left to git: deltas, large objects, several packs, and names that are no commits.

The formats: git-scm.com/docs/gitformat-pack.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_PACK_BYTES: Final = 256 * 1024
MAX_OBJECT_BYTES: Final = 64 * 1024
"""The most that an object takes: a hostile one must not hold up the event loop."""
DIRECTORY: Final = "040000"
_KINDS: Final = {1: "commit", 2: "tree", 3: "blob"}
_COMMIT_HEAD: Final = re.compile(rb"tree ([0-9a-f]{40,64})\n")
_ENTRY: Final = {
    hex_digits: re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % (hex_digits // 2), re.DOTALL)
    for hex_digits in (40, 64)
}
"""An entry of a tree object: mode, name and object id. Git rejects other trees when it fetches."""
_INDEX_HEAD: Final = b"\xfftOc\0\0\0\x02"
_FANOUT_BYTES: Final = 256 * 4


class LeftToGit(Exception):
    """Git must read what was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitObject:
    """An object, or the first bytes of a large one."""

    id: str
    size: int
    content: bytes


def tree_entry(tree: GitObject, name: str) -> tuple[str, str] | None:
    """Return an entry's mode and object id, if it is in the read bytes."""
    for entry in _ENTRY[len(tree.id)].finditer(tree.content):
        if entry[2] == name.encode():
            return entry[1].decode("ascii").zfill(6), entry[3].hex()
    return None


class PackFile:
    """The only pack of a bare repository."""

    def __init__(self, git_dir: Path, object_id: str) -> None:
        """Read it; raise LeftToGit. `object_id` has the length of the repository's ids."""
        self._id_bytes = len(object_id) // 2
        try:
            (pack,) = (git_dir / "objects" / "pack").glob("*.pack")
            if pack.stat().st_size > MAX_PACK_BYTES:
                raise LeftToGit
            self._pack, index = memoryview(pack.read_bytes()), pack.with_suffix(".idx").read_bytes()
            self._offsets = self._read_index(index)
        except (OSError, ValueError, struct.error) as error:
            raise LeftToGit from error

    def _read_index(self, index: bytes) -> Mapping[str, int]:
        if not index.startswith(_INDEX_HEAD):
            raise ValueError("an index of another version")
        ids_at = len(_INDEX_HEAD) + _FANOUT_BYTES
        (count,) = struct.unpack_from(">I", index, ids_at - 4)
        offsets_at = ids_at + count * (self._id_bytes + 4)
        offsets = struct.unpack_from(f">{count}I", index, offsets_at)
        return {
            index[ids_at + number * self._id_bytes :][: self._id_bytes].hex(): offset
            for number, offset in enumerate(offsets)
        }

    def at_paths(self, commit_sha: str, names: Iterable[str]) -> Mapping[str, GitObject | None]:
        """Return what is at each of the names in the commit; raises LeftToGit.

        Names are as for `git cat-file`; the empty one is the root. None: there is nothing, or it was not fetched.
        """
        kind, commit = self._object(commit_sha)
        head = _COMMIT_HEAD.match(commit.content)
        if kind != "commit" or head is None:
            raise LeftToGit
        return {name: self._at(head[1].decode("ascii"), name) for name in names}

    def _at(self, root: str, name: str) -> GitObject | None:
        object_id, mode = root, DIRECTORY
        for part in name.split("/") if name else ():
            if mode != DIRECTORY:
                return None
            kind, tree = self._object(object_id)
            if kind != "tree":
                raise LeftToGit
            entry = tree_entry(tree, part)
            if entry is None:
                return None
            mode, object_id = entry
        return self._object(object_id)[1] if object_id in self._offsets else None

    def _object(self, object_id: str) -> tuple[str, GitObject]:
        """Return the kind of an object, and the object."""
        try:
            at = self._offsets[object_id]
            byte = self._pack[at]
            kind, size, shift = _KINDS[byte >> 4 & 7], byte & 15, 4
            while byte & 0x80:
                at += 1
                byte = self._pack[at]
                size |= (byte & 0x7F) << shift
                shift += 7
            if size > MAX_OBJECT_BYTES:
                raise LeftToGit
            content = zlib.decompressobj().decompress(self._pack[at + 1 :], size or 1)
        except (KeyError, IndexError, zlib.error) as error:
            raise LeftToGit from error
        if len(content) != size:
            raise LeftToGit
        return kind, GitObject(id=object_id, size=size, content=content)
