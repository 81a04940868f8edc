"""Keys of caches, with places for the checksums of files. Pure.

A key is text with `{checksum:FILE,...}` in it, where the digest of these files belongs.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_common.values.globs import InvalidGlob, meaningful

MAX_KEY_BYTES: Final = 150
"""Of a filled key. A store of caches writes it into the name of a file, in the letters of base32."""
CHECKSUM_DIGITS: Final = 40
MAX_PATTERNS: Final = 20
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_CHECKSUM: Final = "checksum:"

Patterns = tuple[str, ...]
"""The files of one checksum: paths and patterns in the checkout."""


class InvalidKey(ValueError):
    """The key cannot be used; the message says why."""


def checksums_of(key: str) -> Sequence[Patterns]:
    """Return the files of each checksum in a key, in order.

    Raises InvalidKey.
    """
    if "{" in (rest := _PLACE.sub("", key)) or "}" in rest:
        raise InvalidKey(f"{key[:80]!r} has a brace without its other one")
    return [_patterns(place) for place in _PLACE.findall(key)]


def longest(key: str) -> int:
    """Return how many bytes the filled key has."""
    return len(_PLACE.sub("0" * CHECKSUM_DIGITS, key).encode())


def filled(key: str, checksums: Mapping[Patterns, str]) -> str:
    """Return the key with the checksums of its files."""
    return _PLACE.sub(lambda place: checksums[_patterns(place[1])][:CHECKSUM_DIGITS], key)


def _patterns(place: str) -> Patterns:
    if not place.startswith(_CHECKSUM):
        raise InvalidKey(
            f"{{{place[:80]}}} is not known in a key; write {{checksum:FILE}} or, in a job with a matrix, {{matrix.AXIS}}"
        )
    patterns = tuple(part.strip() for part in place.removeprefix(_CHECKSUM).split(","))
    if len(patterns) > MAX_PATTERNS:
        raise InvalidKey(f"a checksum may name {MAX_PATTERNS} files or patterns, no more")
    for pattern in patterns:
        if any(part in {"", ".", ".."} for part in pattern.split("/")):
            raise InvalidKey(
                f"{pattern[:80]!r} names no file of the checkout; write it as poetry.lock or services/*/poetry.lock"
            )
        try:
            meaningful(pattern)
        except InvalidGlob as error:
            raise InvalidKey(str(error)) from None
    return patterns
