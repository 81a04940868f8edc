"""Reads bodies piece by piece, and keeps the beginning of large ones. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar

from solstice_common.broker.protocol import HELD_BODY_BYTES

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024
"""How much is kept of a body above HELD_BODY_BYTES."""
GROUP: Final = 100
"""How many dead letters are passed on or published at once."""
GROUP_BYTES: Final = 4 << 20
"""How many bytes of bodies, unless one alone has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeBody:
    """The size and the digest of a body that is too large to keep."""

    size: int
    digest: bytes
    """SHA-256."""


class HashedBody:
    """A body of known size of which pieces arrive in order."""

    def __init__(self, size: int, *, whole: bool = False) -> None:
        """With `whole`, a large body is kept as well."""
        self._missing = self._size = size
        self._is_large = size > HELD_BODY_BYTES and not whole
        self._pieces: list[bytes] = []
        self._room = HEAD_BYTES if self._is_large else size
        self._digest = sha256()

    @property
    def is_complete(self) -> bool:
        return self._missing <= 0

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._missing -= len(piece)
        if self._is_large:
            self._digest.update(piece)
        if self._room > 0:
            self._pieces.append(bytes(piece[: self._room]))
            self._room -= len(piece)

    def read(self) -> tuple[bytes, LargeBody | None]:
        """Return what was read of the body, and facts of one too large."""
        held = b"".join(self._pieces)
        if not self._is_large:
            return held, None
        return held, LargeBody(size=self._size, digest=self._digest.digest())


def in_groups(items: Iterable[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Yield the items in groups that fit into memory; a large item is alone."""
    group: list[T] = []
    group_bytes = 0
    for item in items:
        if group and (len(group) == GROUP or group_bytes + size(item) > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += size(item)
    if group:
        yield group
