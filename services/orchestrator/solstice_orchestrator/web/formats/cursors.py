"""Make and read cursors, which say where a list's next page begins. Pure.

A cursor is opaque to clients, and valid only for the list that returned it.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from uuid import UUID

_CHECK_BYTES: Final = 8
_UUID_BYTES: Final = 16


def cursor_of(last: str, of: str, filters: Mapping[str, object]) -> str:
    """Return the cursor behind the id `last` in the list `of` with these filters."""
    return _encoded(UUID(last).bytes, of, filters)


def position_of(cursor: str, of: str, filters: Mapping[str, object]) -> str | None:
    """Return the id behind which the page begins; None for an invalid cursor.

    A cursor of another list or of other filters is invalid too.
    """
    position = _decoded(cursor, of, filters)
    return None if position is None or len(position) != _UUID_BYTES else str(UUID(bytes=position))


def text_cursor_of(last: str, of: str, filters: Mapping[str, object]) -> str:
    """Return the cursor behind a position that is no UUID."""
    return _encoded(last.encode(), of, filters)


def text_position_of(cursor: str, of: str, filters: Mapping[str, object]) -> str | None:
    """Return that position; None for an invalid cursor, as in `position_of`."""
    try:
        position = _decoded(cursor, of, filters)
        return None if position is None else position.decode()
    except UnicodeDecodeError:
        return None


def _encoded(position: bytes, of: str, filters: Mapping[str, object]) -> str:
    return urlsafe_b64encode(position + _check(position, of, filters)).decode()


def _decoded(cursor: str, of: str, filters: Mapping[str, object]) -> bytes | None:
    try:
        known = urlsafe_b64decode(cursor.encode("ascii"))
    except ValueError:
        return None
    position, check = known[:-_CHECK_BYTES], known[-_CHECK_BYTES:]
    return position if check == _check(position, of, filters) else None


def _check(position: bytes, of: str, filters: Mapping[str, object]) -> bytes:
    pairs = sorted((name, str(value)) for name, value in filters.items() if value is not None)
    return hashlib.blake2b(position + repr((of, pairs)).encode(), digest_size=_CHECK_BYTES).digest()
