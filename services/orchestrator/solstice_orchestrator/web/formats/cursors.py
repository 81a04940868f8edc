"""Where the next page of a list begins, as clients carry it: opaque, and good for the list that gave it alone. Pure."""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from uuid import UUID

_CHECK_BYTES: Final = 8


def cursor_of(last: str, of: str, wanted: Mapping[str, object]) -> str:
    """What leads on behind the id `last` in the list `of` of what is `wanted`."""
    place = UUID(last).bytes
    return urlsafe_b64encode(place + _check(place, of, wanted)).decode()


def place_of(cursor: str, of: str, wanted: Mapping[str, object]) -> str | None:
    """The id behind which the page begins; None for what is no cursor, or one of another list or other filters."""
    try:
        known = urlsafe_b64decode(cursor.encode("ascii"))
    except ValueError:
        return None
    place, check = known[:16], known[16:]
    if len(place) < 16 or check != _check(place, of, wanted):  # noqa: PLR2004  of a UUID
        return None
    return str(UUID(bytes=place))


def _check(place: bytes, of: str, wanted: Mapping[str, object]) -> bytes:
    asked = sorted((name, str(value)) for name, value in wanted.items() if value is not None)
    return hashlib.blake2b(place + repr((of, asked)).encode(), digest_size=_CHECK_BYTES).digest()
