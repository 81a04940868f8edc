"""Headers of tar, with names of any byte and times of nanoseconds. Pure.

Only what is written here is read again. `zstd -d | tar -t` reads it as well.

Source: POSIX, pax, "ustar Interchange Format" and "pax Extended Header".
"""

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from solstice_orchestrator.worker.artifacts.tar_headers import BLOCK, BadHeader, read_header

FILE, LINK, FOLDER, EXTENDED = b"0", b"2", b"5", b"x"
MAX_NAME: Final = 4096
MAX_EXTENDED: Final = 4 * MAX_NAME
END: Final = bytes(2 * BLOCK)
_FIELDS: Final = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_SHORT: Final = 100
_SECOND: Final = 1_000_000_000
_LATEST: Final = 8**11 - 1
_TIME: Final = re.compile(rb"([0-9]{1,11})(?:\.([0-9]{1,9}))?")
_MTIME: Final = slice(136, 148)


class TarMember(NamedTuple):
    """One member of an archive."""

    type: bytes
    name: bytes
    size: int
    mode: int
    mtime_ns: int
    target: bytes = b""
    """Of a symbolic link."""


def header_of(member: TarMember) -> bytes:
    """Return the header of a member, after an extended one where that is needed."""
    seconds, nanoseconds = divmod(min(max(member.mtime_ns, 0), _LATEST * _SECOND), _SECOND)
    records = []
    if len(member.name) > _SHORT:
        records.append(_record(b"path", member.name))
    if len(member.target) > _SHORT:
        records.append(_record(b"linkpath", member.target))
    if nanoseconds:
        records.append(_record(b"mtime", b"%d.%09d" % (seconds, nanoseconds)))
    before = b""
    if records:
        content = b"".join(records)
        before = (
            _header(b"pax", EXTENDED, len(content), 0o644, seconds, b"") + content + padding(len(content))
        )
    return before + _header(
        member.name[:_SHORT], member.type, member.size, member.mode, seconds, member.target[:_SHORT]
    )


def padding(size: int) -> bytes:
    """Return what fills up the last block of so many bytes."""
    return bytes(-size % BLOCK)


def read_member(block: bytes, extended: bytes = b"") -> TarMember | None:
    """Return the member in a header; None at the end of the archive.

    `extended` is the content of the extended header before it. Raises BadHeader.
    """
    header = read_header(block)
    if header is None:
        return None
    if header.type not in {FILE, LINK, FOLDER, EXTENDED}:
        raise BadHeader(f"it has a member of the type {header.type!r}")
    name, target = header.name, header.target
    seconds = block[_MTIME].strip(b" \0")
    if not seconds.isdigit():
        raise BadHeader("a time is no number")
    mtime_ns = int(seconds, 8) * _SECOND
    for key, value in _records(extended):
        match key:
            case b"path":
                name = value
            case b"linkpath":
                target = value
            case b"mtime" if time := _TIME.fullmatch(value):
                mtime_ns = int(time[1]) * _SECOND + int((time[2] or b"0").ljust(9, b"0"))
            case _:
                raise BadHeader(f"it has an unknown record {key[:40]!r}")
    return TarMember(header.type, name, header.size, header.mode & 0o777, mtime_ns, target)


def _header(  # noqa: PLR0917  the fields in the order of the format
    name: bytes, kind: bytes, size: int, mode: int, seconds: int, target: bytes
) -> bytes:
    block = bytearray(
        _FIELDS.pack(
            name,
            *(b"%07o" % mode, b"0000000", b"0000000", b"%011o" % size, b"%011o" % seconds, b" " * 8),
            *(kind, target, b"ustar\0", b"00", b"", b"", b"0000000", b"0000000", b""),
        )
    )
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _record(key: bytes, value: bytes) -> bytes:
    """Return a record of an extended header; its length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    while content:
        digits, space, _ = content[:20].partition(b" ")
        if not (space and digits.isdigit()):
            raise BadHeader("an extended header has no length")
        length = int(digits)
        record, content = content[len(digits) + 1 : length], content[length:]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n") or length != len(digits) + 1 + len(record):
            raise BadHeader("an extended header has a wrong length")
        yield key, value[:-1]
