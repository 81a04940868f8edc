"""Take the heads of HTTP messages apart, and put them together. Pure.

Source: RFC 9112 (sections 5 and 6).
"""

from collections.abc import Iterable

Fields = tuple[tuple[str, str], ...]
"""Names and values of a head, in order."""


def split_head(head: bytes) -> tuple[str, Fields]:
    """Return the first line and the fields of a head; ValueError for what is none."""
    line, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    fields = []
    for each in rest:
        name, colon, value = each.partition(":")
        if not colon or not name or name != name.strip() or any(char in each for char in "\r\n\0"):
            raise ValueError("no header field")
        fields.append((name, value.strip(" \t")))
    return line, tuple(fields)


def joined(line: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a head of this first line and these fields."""
    lines = [line, *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def body_bytes_of(fields: Fields) -> int:
    """Return the size of a request's body.

    git sends none of unknown size for an empty repository. ValueError for one.
    """
    lengths = [value for name, value in fields if name.lower() == "content-length"]
    if any(name.lower() == "transfer-encoding" for name, _ in fields) or len(lengths) > 1:
        raise ValueError("no size of the body")
    if lengths and not (lengths[0].isascii() and lengths[0].isdecimal()):
        raise ValueError("no size of the body")
    return int(lengths[0]) if lengths else 0
