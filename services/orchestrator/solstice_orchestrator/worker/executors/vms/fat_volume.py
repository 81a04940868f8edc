"""Write small volumes of files in the format FAT12, which firmware and every kernel read. Pure.

The layout is that of a diskette of 1440 KiB.

Source: ECMA-107; for long names, Microsoft's FAT specification of 2005, chapter 7.
"""

import struct
from collections.abc import Mapping
from typing import Final

SECTOR: Final = 512
SECTORS: Final = 2880
TABLE_SECTORS: Final = 9
ROOT_ENTRIES: Final = 224
DATA_SECTOR: Final = 1 + 2 * TABLE_SECTORS + ROOT_ENTRIES * 32 // SECTOR
FIRST_CLUSTER: Final = 2
MEDIA: Final = 0xF0
LAST: Final = 0xFFF
"""Of a file's clusters, in the table."""
NAME_PART: Final = 13
"""The characters of a long name in each of its entries."""
_BOOT: Final = struct.Struct("<3s8sHBHBHHBHHHII BBBI11s8s")
_ENTRY: Final = struct.Struct("<11sBBBHHHHHHHI")
_LONG: Final = struct.Struct("<B10sBBB12sH4s")
FILE, LABEL, LONG_NAME = 0x20, 0x08, 0x0F
DATE: Final = 0x0021
"""The first day of 1980: a day is needed, and none is true."""


def fat_volume(label: str, files: Mapping[str, bytes]) -> bytes:
    """Return a volume with these files. Raises ValueError when they have no room."""
    entries, table, data = [_entry(label.upper().ljust(11).encode(), LABEL)], [0xF00 | MEDIA, LAST], b""
    for number, (name, content) in enumerate(files.items(), start=1):
        first, count = len(table), -(-len(content) // SECTOR)
        short = f"SOLST~{number}".ljust(11).encode()
        entries += _long_entries(name, short)
        entries.append(_entry(short, FILE, first if count else 0, len(content)))
        table += [*range(first + 1, first + count), LAST] if count else []
        data += content + bytes(-len(content) % SECTOR)
    if len(entries) > ROOT_ENTRIES or len(data) > (SECTORS - DATA_SECTOR) * SECTOR:
        raise ValueError(f"{len(files)} files of {len(data)} bytes have no room in a volume")
    packed_table = _packed(table).ljust(TABLE_SECTORS * SECTOR, b"\0")
    root = b"".join(entries).ljust(ROOT_ENTRIES * 32, b"\0")
    return (_boot_sector(label) + 2 * packed_table + root + data).ljust(SECTORS * SECTOR, b"\0")


def _boot_sector(label: str) -> bytes:
    fields = _BOOT.pack(
        *(b"\xeb\x3c\x90", b"SOLSTICE", SECTOR, 1, 1, 2, ROOT_ENTRIES, SECTORS, MEDIA, TABLE_SECTORS),
        *(18, 2, 0, 0, 0, 0, 0x29, 0, label.upper().ljust(11).encode(), b"FAT12   "),
    )
    return fields.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"


def _entry(name: bytes, kind: int, cluster: int = 0, size: int = 0) -> bytes:
    return _ENTRY.pack(name, kind, 0, 0, 0, DATE, DATE, 0, 0, DATE, cluster, size)


def _long_entries(name: str, short: bytes) -> list[bytes]:
    """Return the entries of a long name, the last part first."""
    checksum = 0
    for byte in short:
        checksum = ((checksum >> 1) + ((checksum & 1) << 7) + byte) & 0xFF
    parts = [name[begin : begin + NAME_PART] for begin in range(0, len(name), NAME_PART)]
    entries = []
    for number, part in enumerate(parts, start=1):
        text = part.encode("utf-16-le") + (b"\0\0" if len(part) < NAME_PART else b"")
        text = text.ljust(NAME_PART * 2, b"\xff")
        order = number | (0x40 if number == len(parts) else 0)
        entries.append(_LONG.pack(order, text[:10], LONG_NAME, 0, checksum, text[10:22], 0, text[22:]))
    return entries[::-1]


def _packed(table: list[int]) -> bytes:
    """Return a table of numbers of 12 bits, two in three bytes."""
    pairs = zip(table[::2], [*table[1::2], 0], strict=False)
    return b"".join((low | high << 12).to_bytes(3, "little") for low, high in pairs)
