"""Write archives that the kernel unpacks as its first root file system. Pure.

The kernel unpacks several archives one after the other, so one with our own `/init` may follow that of an image.

Source: docs.kernel.org/driver-api/early-userspace/buffer-format.html.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

DIRECTORY: Final = 0o040755
PROGRAM: Final = 0o100755
LINK: Final = 0o120777
_MAGIC: Final = b"070701"
_ALIGNMENT: Final = 4
NO_LINKS: Final[Mapping[str, str]] = MappingProxyType({})


def initramfs(
    programs: Mapping[str, bytes], directories: Sequence[str] = (), links: Mapping[str, str] = NO_LINKS
) -> bytes:
    """Return an archive of programs, directories and links, by their paths."""
    entries = [
        *((name, DIRECTORY, b"") for name in directories),
        *((name, PROGRAM, content) for name, content in programs.items()),
        *((name, LINK, target.encode()) for name, target in links.items()),
    ]
    packed = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, start=1))
    return packed + _entry(0, "TRAILER!!!", 0, b"")


def _entry(inode: int, name: str, mode: int, content: bytes) -> bytes:
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = _MAGIC + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _filled(head) + _filled(content)


def _filled(part: bytes) -> bytes:
    return part + bytes(-len(part) % _ALIGNMENT)
