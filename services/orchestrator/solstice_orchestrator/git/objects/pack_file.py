"""Reads all objects of a small pack without git.

To start git costs more than to read them. The id of each object is computed from its content, so none can pass for
another. What is unusual in a pack is left to git: large objects, deltas to objects elsewhere, several packs, and names
that are no commits.

The formats: git-scm.com/docs/gitformat-pack.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

MAX_PACK_BYTES: Final = 256 * 1024
MAX_OBJECT_BYTES: Final = 256 * 1024
MAX_OBJECTS_BYTES: Final = 2 * 1024**2
"""The most that all objects take: a hostile pack must not hold up this process."""
DIRECTORY: Final = "040000"
KINDS: Final = {1: "commit", 2: "tree", 3: "blob"}
OFFSET_DELTA: Final = 6
_HEADER: Final = struct.Struct(">4sII")
_VERSION: Final = 2
_MAX_SHIFT: Final = 35
"""No number in a small pack has more bits."""
DEFLATED_MORE: Final = 128
"""What the deflated form of a small object may take beyond its size, generously."""
_COPY: Final = 0x80
_COPIED_AT_MOST: Final = 0x10000
_COMMIT_HEAD: Final = re.compile(rb"tree ([0-9a-f]{40,64})\n")
_ENTRY: Final = {
    hex_digits: re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % (hex_digits // 2), re.DOTALL)
    for hex_digits in (40, 64)
}
"""An entry of a tree object: mode, name and object id. Git rejects other trees when it fetches."""


class LeftToGit(Exception):
    """Git must read what was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitObject:
    """An object, or the first bytes of a large one."""

    id: str
    size: int
    content: bytes


class PackedObject(NamedTuple):
    """What a pack has of an object."""

    kind: str
    content: bytes


def tree_entry(tree: GitObject, name: str) -> tuple[str, str] | None:
    """Return an entry's mode and object id, if it is in the read bytes."""
    for entry in _ENTRY[len(tree.id)].finditer(tree.content):
        if entry[2] == name.encode():
            return entry[1].decode("ascii").zfill(6), entry[3].hex()
    return None


def tree_entries(tree: GitObject) -> Iterator[tuple[str, bytes, str]]:
    """Yield mode, name and object id of each entry of a whole tree; raises LeftToGit."""
    at = 0
    while at < len(tree.content):
        entry = _ENTRY[len(tree.id)].match(tree.content, at)
        if entry is None:
            raise LeftToGit
        yield entry[1].decode("ascii").zfill(6), entry[2], entry[3].hex()
        at = entry.end()


@dataclass(frozen=True, slots=True)
class SmallPack:
    """The objects of a pack, by their ids."""

    objects: Mapping[str, PackedObject]
    size_bytes: int
    """What the objects take in memory."""

    def at_paths(self, commit_sha: str, names: Iterable[str]) -> Mapping[str, GitObject | None]:
        """Return what is at each of the names in the commit; raises LeftToGit.

        Names are as for `git cat-file`; the empty one is the root. None: there is nothing, or it was not fetched.
        """
        root = self.tree_of(commit_sha)
        return {name: self._at(root, name) for name in names}

    def tree_of(self, commit_sha: str) -> str:
        """Return the id of the commit's root directory; raises LeftToGit."""
        head = _COMMIT_HEAD.match(self.object(commit_sha, "commit").content)
        if head is None:
            raise LeftToGit
        return head[1].decode("ascii")

    def object(self, object_id: str, *kinds: str) -> GitObject:
        """Return an object of one of these kinds; raises LeftToGit."""
        found = self.objects.get(object_id)
        if found is None or found.kind not in kinds:
            raise LeftToGit
        return GitObject(id=object_id, size=len(found.content), content=found.content)

    def _at(self, root: str, name: str) -> GitObject | None:
        object_id, mode = root, DIRECTORY
        for part in name.split("/") if name else ():
            if mode != DIRECTORY:
                return None
            entry = tree_entry(self.object(object_id, "tree"), part)
            if entry is None:
                return None
            mode, object_id = entry
        return self.object(object_id, "tree", "blob") if object_id in self.objects else None


def read_pack_of(git_dir: Path, digest: str) -> SmallPack:
    """Read the only pack of a bare repository; raises LeftToGit.

    `digest` is the name of the repository's hash.
    """
    try:
        (pack,) = (git_dir / "objects" / "pack").glob("*.pack")
        if pack.stat().st_size > MAX_PACK_BYTES:
            raise LeftToGit
        return read_pack(pack.read_bytes(), digest)
    except (OSError, ValueError) as error:
        raise LeftToGit from error


def read_pack(pack: bytes, digest: str) -> SmallPack:
    """Read all objects of a pack; raises LeftToGit."""
    checksum_bytes = hashlib.new(digest, usedforsecurity=False).digest_size
    end = len(pack) - checksum_bytes
    if len(pack) > MAX_PACK_BYTES or _digest(digest, pack[: max(end, 0)]) != pack[max(end, 0) :]:
        raise LeftToGit
    try:
        signature, version, count = _HEADER.unpack_from(pack)
        if (signature, version) != (b"PACK", _VERSION):
            raise LeftToGit
        found, at, total = dict[int, PackedObject](), _HEADER.size, 0
        for _ in range(count):
            offset = at
            found[offset], at = _next_object(memoryview(pack)[:end], offset, found)
            total += len(found[offset].content)
            if total > MAX_OBJECTS_BYTES:
                raise LeftToGit
    except (KeyError, IndexError, struct.error, zlib.error) as error:
        raise LeftToGit from error
    if at != end:
        raise LeftToGit
    return SmallPack({id_of(each, digest): each for each in found.values()}, total)


def _digest(digest: str, *pieces: bytes) -> bytes:
    computed = hashlib.new(digest, usedforsecurity=False)
    for piece in pieces:
        computed.update(piece)
    return computed.digest()


def id_of(found: PackedObject, digest: str) -> str:
    head = f"{found.kind} {len(found.content)}\0".encode()
    return _digest(digest, head, found.content).hex()


def _next_object(
    pack: memoryview, offset: int, before: Mapping[int, PackedObject]
) -> tuple[PackedObject, int]:
    """Return the object at this place, and where the next one is.

    `before` are those at earlier places.
    """
    at, number, size = entry_head(pack, offset)
    if number == OFFSET_DELTA:
        at, distance = distance_to_base(pack, at, offset)
        base = before[offset - distance]
        delta, at = inflated(pack, at, size)
        return base._replace(content=with_delta(base.content, delta)), at
    content, at = inflated(pack, at, size)
    return PackedObject(KINDS[number], content), at


def entry_head(pack: memoryview, at: int) -> tuple[int, int, int]:
    """Return where an entry's data begins, the number of its kind, and its size."""
    byte = pack[at]
    number, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 0x80:
        at += 1
        byte = pack[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        if size > MAX_OBJECT_BYTES or shift > _MAX_SHIFT:
            raise LeftToGit
    return at + 1, number, size


def distance_to_base(pack: memoryview, at: int, offset: int) -> tuple[int, int]:
    """Return where a delta's data begins, and how far before it its base stands.

    The delta itself is at `offset`.
    """
    byte = pack[at]
    distance = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = pack[at]
        distance = (distance + 1) << 7 | byte & 0x7F
        if distance > offset:
            raise LeftToGit
    return at + 1, distance


def inflated(pack: memoryview, at: int, size: int) -> tuple[bytes, int]:
    """Return the data that begins here, and where it ends."""
    deflated = pack[at : at + size + size // 1000 + DEFLATED_MORE]
    inflating = zlib.decompressobj()
    content = inflating.decompress(deflated, size + 1)
    if len(content) != size or not inflating.eof:
        raise LeftToGit
    return content, at + len(deflated) - len(inflating.unused_data)


def with_delta(base: bytes, delta: bytes) -> bytes:
    """Return the content that a delta makes of its base.

    Raises LeftToGit, or IndexError for a cut one.

    The format: git-scm.com/docs/gitformat-pack, "Deltified representation".
    """
    at, base_size = _size(delta, 0)
    at, size = _size(delta, at)
    if base_size != len(base) or size > MAX_OBJECT_BYTES:
        raise LeftToGit
    content = bytearray()
    while at < len(delta):
        instruction = delta[at]
        at += 1
        if instruction & _COPY:
            numbers = bytearray(7)
            for bit in range(7):
                if instruction >> bit & 1:
                    numbers[bit] = delta[at]
                    at += 1
            begin, length = int.from_bytes(numbers[:4], "little"), int.from_bytes(numbers[4:], "little")
            length = length or _COPIED_AT_MOST
            piece = base[begin : begin + length]
        else:
            length = instruction
            piece = delta[at : at + length]
            at += length
        content += piece
        if not length or len(piece) != length or len(content) > size:
            raise LeftToGit
    if len(content) != size:
        raise LeftToGit
    return bytes(content)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """Read a size in a delta; return where the next value begins, and the size."""
    size, shift = delta[at] & 0x7F, 7
    while delta[at] & 0x80:
        at += 1
        size |= (delta[at] & 0x7F) << shift
        shift += 7
        if shift > _MAX_SHIFT:
            raise LeftToGit
    return at + 1, size
