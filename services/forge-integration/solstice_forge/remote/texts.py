"""Shortens texts to a forge's limits, in the characters it supports. Pure."""

from typing import Final

_ELLIPSIS: Final = "…"
_LAST_OF_THREE_BYTES: Final = 0xFFFF


def shortened(text: str, characters: int, *, bytes_limit: int | None = None, astral: bool = True) -> str:
    """Return `text` on one line within the limits, with an ellipsis if it was cut.

    The limits are characters, and bytes of UTF-8. `astral=False`: characters that need four bytes of UTF-8 become a
    replacement character.
    """
    clean = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    clean = clean.encode("utf-8", "replace").decode()
    if not astral:
        clean = "".join(each if ord(each) <= _LAST_OF_THREE_BYTES else "\ufffd" for each in clean)
    cut = clean if len(clean) <= characters else clean[: characters - 1].rstrip() + _ELLIPSIS
    if bytes_limit is not None and len(cut.encode()) > bytes_limit:
        prefix = cut.removesuffix(_ELLIPSIS).encode()[: bytes_limit - len(_ELLIPSIS.encode())]
        cut = prefix.decode(errors="ignore").rstrip() + _ELLIPSIS
    return cut


def link(url: str | None, characters: int) -> str | None:
    """Return the link, or None when it is too long or no web address.

    A link is never cut, since half of one leads nowhere.
    """
    if url is None or len(url) > characters or not url.startswith(("http://", "https://")):
        return None
    return url
