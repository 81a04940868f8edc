"""Writes a pack of whole objects, and its index. Pure.

The formats: git-scm.com/docs/gitformat-pack.
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from solstice_orchestrator.git.objects.pack_file import PackedObject

KIND_NUMBERS: Final = {"commit": 1, "tree": 2, "blob": 3}
FASTEST: Final = 1
"""Of the levels of compression. The objects are few and small."""


def written_pack(objects: Mapping[str, PackedObject], digest: str) -> tuple[str, bytes, bytes]:
    """Return the name, the pack and the index of these objects.

    They stand by their ids. `digest` is the name of the repository's hash.
    """
    pack = bytearray(struct.pack(">4sII", b"PACK", 2, len(objects)))
    crcs_and_offsets = dict[str, tuple[int, int]]()
    for object_id, (kind, content) in objects.items():
        entry = _head(KIND_NUMBERS[kind], len(content)) + zlib.compress(content, FASTEST)
        crcs_and_offsets[object_id] = zlib.crc32(entry), len(pack)
        pack += entry
    checksum = hashlib.new(digest, pack, usedforsecurity=False)
    pack += checksum.digest()
    return checksum.hexdigest(), bytes(pack), _index(crcs_and_offsets, checksum.digest(), digest)


def _head(number: int, size: int) -> bytes:
    """Return the kind and the size of an object as they stand before its data."""
    head, byte = bytearray(), number << 4 | size & 15
    size >>= 4
    while size:
        head.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    head.append(byte)
    return bytes(head)


def _index(crcs_and_offsets: Mapping[str, tuple[int, int]], checksum: bytes, digest: str) -> bytes:
    """Return an index of version 2.

    `crcs_and_offsets` has the CRC and the offset of each entry, by its object's id.
    """
    ids = sorted(crcs_and_offsets)
    firsts = [int(each[:2], 16) for each in ids]
    fanout = [sum(first <= byte for first in firsts) for byte in range(256)]
    index = b"".join(
        (
            b"\xfftOc\0\0\0\x02",
            struct.pack(">256I", *fanout),
            *(bytes.fromhex(each) for each in ids),
            *(struct.pack(">I", crcs_and_offsets[each][number]) for number in range(2) for each in ids),
            checksum,
        )
    )
    return index + hashlib.new(digest, index, usedforsecurity=False).digest()
