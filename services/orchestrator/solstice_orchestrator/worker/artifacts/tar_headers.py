"""Read headers of the tar format, of which every byte may be hostile. Pure.

Only what `tar` of GNU and of busybox writes by itself is known here: no header of pax, and no sparse file.

Source: POSIX, pax, "ustar Interchange Format"; the manual of GNU tar, "Basic Tar Format".
"""

import re
import stat
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

BLOCK: Final = 512
_FIELDS: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_CHECKSUM: Final = slice(148, 156)
_GNU, _POSIX = b"ustar  \0", b"ustar\x0000"
_OCTAL: Final = re.compile(rb" *([0-7]+)[ \0]*")
_BASE_256: Final = 0x80
"""The first byte of a number that has no room in octal digits; a negative one begins with 0xff."""
LONG_NAME, LONG_TARGET, HARD_LINK = b"L", b"K", b"1"
KINDS: Final[Mapping[bytes, int]] = MappingProxyType(
    {
        b"0": stat.S_IFREG,
        b"\0": stat.S_IFREG,
        b"2": stat.S_IFLNK,
        b"3": stat.S_IFCHR,
        b"4": stat.S_IFBLK,
        b"6": stat.S_IFIFO,
    }
)
"""What an entry is, as stat(2) says it, by its type."""


class BadHeader(ValueError):
    """A block is no header that is known here; the message says why."""


class TarHeader(NamedTuple):
    """The header of one entry, or of a long name for the next one."""

    type: bytes
    name: bytes
    target: bytes
    """Of a link."""
    size: int
    mode: int
    device: tuple[int, int]
    """The numbers of a device."""


def read_header(block: bytes) -> TarHeader | None:
    """Return the header in a block; None: it is empty. Raises BadHeader."""
    if not block.strip(b"\0"):
        return None
    name, mode, _, _, size, _, checksum, kind, target, magic, _, _, major, minor, prefix = _unpacked(block)
    if magic not in {_GNU, _POSIX}:
        raise BadHeader("it has no magic word of tar")
    if _octal(checksum) != sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" "):
        raise BadHeader("its checksum is wrong")
    before = _text(prefix) if magic == _POSIX else b""
    is_device = KINDS.get(kind) in {stat.S_IFCHR, stat.S_IFBLK}
    return TarHeader(
        type=kind,
        name=before + b"/" + _text(name) if before else _text(name),
        target=_text(target),
        size=_number(size),
        mode=_octal(mode),
        device=(_number(major), _number(minor)) if is_device else (0, 0),
    )


def _unpacked(block: bytes) -> tuple[bytes, ...]:
    if len(block) != BLOCK:
        raise BadHeader("it is cut off")
    fields: tuple[bytes, ...] = _FIELDS.unpack(block)
    return fields


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    return _octal(field)


def _octal(field: bytes) -> int:
    digits = _OCTAL.fullmatch(field)
    if digits is None:
        raise BadHeader(f"it has {field!r} where a number belongs")
    return int(digits[1], 8)
