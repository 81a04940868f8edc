"""Matches names of repositories, branches and paths with patterns. Pure.

A pattern and a name are split at `/`. `*` matches any characters of one part, `?` one character, `[abc]`,
`[a-z]` and `[!abc]` one of a set; `**` as a whole part matches any number of parts, also none, and at the end
everything below. A pattern has to match the whole name, upper and lower case differ, and a set is the only
escape: `[*]`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

EVERYTHING: Final = "**"
_SPECIAL: Final = frozenset("*?[")
_TOKEN: Final = re.compile(r"\*+|\?|\[(!?)(\]?[^\]]*)\]|(.)", re.DOTALL)
_MEMBER: Final = re.compile(r"(.)-(.)|.", re.DOTALL)


class InvalidGlob(ValueError):
    """The pattern means nothing; the message says why."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern as a regular expression.

    InvalidGlob says what is wrong with it. Names are untrusted: matching takes time in proportion to their
    length. Between two stars, or two `**`, the first match is as good as any later one, so the expression
    never backtracks there (atomic groups).
    """
    if not pattern:
        raise InvalidGlob("an empty pattern fits nothing: write ** for everything")
    first, *rest = _runs(pattern)
    if not rest:
        return re.compile(first)
    *middle, last = rest
    start = f"{first}/" if first else ""
    between = "".join(f"(?>(?:[^/]*/)*?{run}/)" for run in middle if run)
    return re.compile(f"{start}{between}(?:.*/)?{last}" if last else f"{start}{between}.*", re.DOTALL)


def meaningful(pattern: str) -> str:
    """Return the pattern when it is valid. InvalidGlob says what is wrong with it."""
    compiled(pattern)
    return pattern


def plain_parts(pattern: str) -> Sequence[str]:
    """Return the parts of a pattern before the first with a special character."""
    parts = pattern.split("/")
    return parts[: next((n for n, part in enumerate(parts) if not _SPECIAL.isdisjoint(part)), len(parts))]


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether the whole name matches one of the patterns."""
    return any(pattern == EVERYTHING or compiled(pattern).fullmatch(name) for pattern in patterns)


def _runs(pattern: str) -> Sequence[str]:
    """Expressions for the parts before, between and after the `**`."""
    runs: list[list[str]] = [[]]
    for part in pattern.split("/"):
        if part == EVERYTHING:
            runs.append([])
        else:
            runs[-1].append(_part(part, pattern))
    return ["/".join(run) for run in runs]


def _part(part: str, pattern: str) -> str:
    """Return an expression for one part."""
    pieces = [""]
    for token in _TOKEN.finditer(part):
        if token[0].startswith("*"):
            pieces.append("")
        else:
            pieces[-1] += _character(token, pattern)
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + f"[^/]*{last}"


def _character(token: re.Match[str], pattern: str) -> str:
    if token[0] == "[":
        raise InvalidGlob(f"{pattern!r}: [ without its ]; write [[] for the character itself")
    if token[0] == "?":
        return "[^/]"
    if token[3] is not None:
        return re.escape(token[3])
    return f"(?!/)[{'^' if token[1] else ''}{_set(token[2], pattern)}]"


def _set(members: str, pattern: str) -> str:
    """Return the inside of a set: single characters and `a-z`."""
    if not members:
        raise InvalidGlob(f"{pattern!r}: an empty set fits nothing")
    parts = []
    for part in _MEMBER.finditer(members):
        first, last = part[1] or part[0], part[2] or part[0]
        if first > last:
            raise InvalidGlob(f"{pattern!r}: {part[0]!r} runs backwards")
        parts.append(re.escape(part[0]) if first == last else f"{re.escape(first)}-{re.escape(last)}")
    return "".join(parts)
