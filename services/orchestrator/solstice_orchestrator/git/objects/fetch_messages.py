"""Writes the request for commits without their history, and reads the pack in the answer. Pure.

Version 2 of git's protocol (git-scm.com/docs/protocol-v2, "fetch"), as far as it is needed for that.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from solstice_orchestrator.git.objects.pack_file import MAX_PACK_BYTES, LeftToGit
from solstice_orchestrator.git.repository import object_format

MAX_ANSWER_BYTES: Final = MAX_PACK_BYTES + 64 * 1024
"""The most that is read: a pack, and what stands around its pieces."""
_FLUSH: Final = b"0000"
_DELIMITER: Final = b"0001"
_LENGTH_BYTES: Final = 4
_DIGITS: Final = re.compile(rb"[0-9a-f]{4}")
_PACK: Final = 1
_PROGRESS: Final = 2


def fetch_request(shas: Sequence[str]) -> bytes:
    """Return the request for these commits alone, with all their files."""
    capabilities = ("command=fetch", f"object-format={object_format(shas[0])}")
    arguments = ("no-progress", "ofs-delta", "deepen 1", *(f"want {sha}" for sha in shas), "done")
    return b"".join((*map(_line, capabilities), _DELIMITER, *map(_line, arguments), _FLUSH))


def _line(text: str) -> bytes:
    return f"{len(text) + _LENGTH_BYTES + 1:04x}{text}\n".encode("ascii")


def pack_in(answer: bytes) -> bytes:
    """Return the pack in a whole answer; raises LeftToGit for any other one."""
    pack, lines = bytearray(), _lines(answer)
    for section in lines:
        if section == b"shallow-info\n":
            while next(lines, None):
                pass
        elif section == b"packfile\n":
            for piece in lines:
                if piece[:1] == bytes([_PACK]):
                    pack += piece[1:]
                elif piece[:1] != bytes([_PROGRESS]):
                    raise LeftToGit
            return bytes(pack)
        else:
            raise LeftToGit
    raise LeftToGit


def _lines(answer: bytes) -> Iterator[bytes]:
    """Yield each line of a whole answer, and an empty one for each delimiter."""
    at = 0
    while (length := answer[at : at + _LENGTH_BYTES]) != _FLUSH:
        end = at + (_LENGTH_BYTES if length == _DELIMITER else _length(length))
        if end > len(answer):
            raise LeftToGit
        yield answer[at + _LENGTH_BYTES : end]
        at = end
    if at + _LENGTH_BYTES != len(answer):
        raise LeftToGit


def _length(digits: bytes) -> int:
    length = int(digits, 16) if _DIGITS.fullmatch(digits) else 0
    if length <= _LENGTH_BYTES:
        raise LeftToGit
    return length
