"""Read the unquoted words of KDL 2: keywords, numbers, identifiers (kdl.dev/spec)."""

import re
from typing import Final

from solstice_orchestrator.workflow.kdl.nodes import KdlScalar
from solstice_orchestrator.workflow.kdl.strings import KdlSyntaxError

MAX_NUMBER_LENGTH: Final = 64

_NUMBERLIKE: Final = re.compile(r"[+-]?\.?[0-9]")
_DECIMAL: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9][0-9_]*)(?P<rest>(\.[0-9][0-9_]*)?([eE][+-]?[0-9][0-9_]{0,5})?)"
)
_RADIX: Final = re.compile(
    r"(?P<sign>[+-]?)0(?:x(?P<x>[0-9a-fA-F][0-9a-fA-F_]*)|o(?P<o>[0-7][0-7_]*)|b(?P<b>[01][01_]*))"
)
_KEYWORDS: Final[dict[str, KdlScalar]] = {
    "#true": True,
    "#false": False,
    "#null": None,
    "#inf": float("inf"),
    "#-inf": float("-inf"),
    "#nan": float("nan"),
}
_RESERVED: Final = frozenset({"true", "false", "null", "inf", "-inf", "nan"})


def read_word(word: str, start: int) -> KdlScalar:
    """Return the value of a word that begins at `start`; raises KdlSyntaxError."""
    if word in _KEYWORDS:
        return _KEYWORDS[word]
    if _NUMBERLIKE.match(word):
        return _number(word, start)
    if word in _RESERVED:
        raise KdlSyntaxError(start, f'write #{word} for the value, or "{word}" in quotes for the text')
    hash_at = word.find("#")
    if hash_at == 0:
        known = ", ".join(sorted(_KEYWORDS))
        raise KdlSyntaxError(start, f"{word!r} is no value; those that begin with # are {known}")
    if hash_at > 0:
        raise KdlSyntaxError(start + hash_at, "a word without quotes cannot hold '#'; put it in quotes")
    return word


def _number(word: str, start: int) -> int | float:
    if len(word) > MAX_NUMBER_LENGTH:
        raise KdlSyntaxError(start, f"a number may be {MAX_NUMBER_LENGTH} characters long, no longer")
    radix = _RADIX.fullmatch(word)
    if radix:
        for name, base in (("x", 16), ("o", 8), ("b", 2)):
            if radix[name]:
                return int(radix["sign"] + radix[name].replace("_", ""), base)
    decimal = _DECIMAL.fullmatch(word)
    if not decimal:
        raise KdlSyntaxError(
            start, f'{word!r} is no number; text that begins like one needs quotes: "{word}"'
        )
    plain = word.replace("_", "")
    return float(plain) if decimal["rest"] else int(plain)
