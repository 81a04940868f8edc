"""Make and read cursors, which say where a list's next page begins. Pure.

A cursor is opaque to clients, and valid only for the list that returned it.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from uuid import UUID

_CHECK_BYTES: Final = 8


def cursor_of(last: str, of: str, filters: Mapping[str, object]) -> str:
    """Return the cursor behind the id `last` in the list `of` with these filters."""
    place = UUID(last).bytes
    return urlsafe_b64encode(place + _check(place, of, filters)).decode()


def place_of(cursor: str, of: str, filters: Mapping[str, object]) -> str | None:
    """Return the id behind which the page begins; None for an invalid cursor.

    A cursor of another list or of other filters is invalid too.
    """
    try:
        known = urlsafe_b64decode(cursor.encode("ascii"))
    except ValueError:
        return None
    place, check = known[:16], known[16:]
    if len(place) < 16 or check != _check(place, of, filters):  # noqa: PLR2004  of a UUID
        return None
    return str(UUID(bytes=place))


def _check(place: bytes, of: str, filters: Mapping[str, object]) -> bytes:
    pairs = sorted((name, str(value)) for name, value in filters.items() if value is not None)
    return hashlib.blake2b(place + repr((of, pairs)).encode(), digest_size=_CHECK_BYTES).digest()
