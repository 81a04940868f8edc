"""Parse the `Range` header of a request (RFC 9110, section 14). Pure."""

import re
from dataclasses import dataclass
from typing import Final

_RANGE: Final = re.compile(r"bytes=(?:(\d{1,15})-(\d{0,15})|-(\d{1,15}))", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes from `first` to `last`, both included.

    A negative `first` counts from the end; `last` None means to the end.
    """

    first: int
    last: int | None = None


def byte_range(header: str | None) -> ByteRange | None:
    """Return the requested range; None means all bytes.

    That is so for a header that is unreadable or has several ranges, which a server may ignore.
    """
    match = _RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        return ByteRange(-int(suffix)) if int(suffix) else None
    if last and int(last) < int(first):
        return None
    return ByteRange(int(first), int(last) if last else None)
