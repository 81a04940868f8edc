"""Which bytes of something a request asks for: `Range` of RFC 9110, section 14. Pure."""

import re
from dataclasses import dataclass
from typing import Final

_RANGE: Final = re.compile(r"bytes=(?:(\d{1,15})-(\d{0,15})|-(\d{1,15}))", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """From `first` (counted from the end when negative) to `last`, both included; None: to the end."""

    first: int
    last: int | None = None


def byte_range(header: str | None) -> ByteRange | None:
    """What is asked for; None for all, as of a range that we cannot read or of several, which nobody has to serve."""
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        return ByteRange(-int(suffix)) if int(suffix) else None
    if last and int(last) < int(first):
        return None
    return ByteRange(int(first), int(last) if last else None)
