"""Read the quoted strings of KDL 2 (kdl.dev/spec, section String).

They have one line or several, with escapes or raw.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SPACE: Final = "\t \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""White space that does not end a line, as the inside of a character class."""
NEWLINE: Final = "\n\r\x0c\x85\u2028\u2029"
"""Characters that end a line, as the inside of a character class; CR LF counts as one."""

_OPENING: Final = re.compile(r'(?P<hashes>#*)(?P<quotes>"""|")')
_NEWLINE: Final = re.compile(rf"\r\n|[{NEWLINE}]")
_ESCAPE: Final = re.compile(
    rf"""\\(?:(?P<simple>["\\bfnrts])|u\{{(?P<code>[0-9a-fA-F]{{1,6}})\}}|(?P<space>[{SPACE}{NEWLINE}]+))"""
)
_SPACES_ONLY: Final = re.compile(rf"[{SPACE}]*")
_SURROGATES: Final = range(0xD800, 0xE000)
_SIMPLE: Final = {
    '"': '"',
    "\\": "\\",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "s": " ",
}


class KdlSyntaxError(ValueError):
    """A string or word is wrong at `offset` of the text."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedString:
    """The string's value, and the offset after its last quote or hash."""

    value: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of a multi-line string, without white-space escapes, and its start offset."""

    offset: int
    text: str


def read_string(text: str, start: int) -> QuotedString | None:
    """Read the quoted or raw string at `start`; None when there is none.

    Raises KdlSyntaxError.
    """
    opening = _OPENING.match(text, start)
    if not opening:
        return None
    hashes, quotes, body = opening["hashes"], opening["quotes"], opening.end()
    several = quotes == '"""'
    end = _end(text, start, body, quotes + hashes, raw=bool(hashes), several=several)
    after = end + len(quotes) + len(hashes)
    if not several:
        value = text[body:end] if hashes else "".join(_resolved(text[body:end]))
        return QuotedString(value=value, end=after)
    if not _NEWLINE.match(text, body):
        raise KdlSyntaxError(
            body,
            'after """ a new line must follow; for text on one line use one " on either side',
        )
    lines = list(_lines(text, body, end, raw=bool(hashes)))
    return QuotedString(value=_dedented(lines, raw=bool(hashes)), end=after)


def _end(text: str, start: int, body: int, closing: str, *, raw: bool, several: bool) -> int:
    """Return the offset of the closing quotes; check every escape before it."""
    stop = re.compile(re.escape(closing) + ("" if raw else r"|\\") + ("" if several else f"|[{NEWLINE}]"))
    at = body
    while match := stop.search(text, at):
        text_found = match.group()
        if text_found == closing:
            return match.start()
        if text_found != "\\":
            raise KdlSyntaxError(
                start,
                'this string is not closed on its line; for text of several lines use """ on lines of their own',
            )
        at = _escape(text, match.start()).end()
    raise KdlSyntaxError(start, f"this string is never closed: {closing} is missing")


def _escape(text: str, at: int) -> re.Match[str]:
    escape = _ESCAPE.match(text, at)
    if not escape:
        raise KdlSyntaxError(
            at,
            'no such escape; there are \\n \\r \\t \\s \\b \\f \\\\ \\" \\u{...}, or use a raw string #"..."#',
        )
    if escape["code"]:
        code = int(escape["code"], 16)
        if code > sys.maxunicode or code in _SURROGATES:
            raise KdlSyntaxError(at, f"there is no character U+{code:04X}")
    return escape


def _resolved(body: str) -> Iterator[str]:
    """Yield the pieces of a string with its checked escapes replaced."""
    at = 0
    while (backslash := body.find("\\", at)) >= 0:
        yield body[at:backslash]
        escape = _escape(body, backslash)
        if escape["simple"]:
            yield _SIMPLE[escape["simple"]]
        elif escape["code"]:
            yield chr(int(escape["code"], 16))
        at = escape.end()
    yield body[at:]


def _lines(text: str, body: int, end: int, *, raw: bool) -> Iterator[_Line]:
    """Yield the lines after the first line break; an escaped line break joins two."""
    first = _NEWLINE.match(text, body)
    at = begin = first.end() if first else body
    parts: list[str] = []
    edge = re.compile(rf"\r\n|[{NEWLINE}]" + ("" if raw else r"|\\"))
    while match := edge.search(text, at, end):
        parts.append(text[at : match.start()])
        at = match.end()
        if match.group() != "\\":
            yield _Line(offset=begin, text="".join(parts))
            begin, parts = at, []
            continue
        escape = _escape(text, match.start())
        at = escape.end()
        if not escape["space"]:
            parts.append(escape.group())
    parts.append(text[at:end])
    yield _Line(offset=begin, text="".join(parts))


def _dedented(lines: list[_Line], *, raw: bool) -> str:
    """Return the lines without the indentation of the closing quotes."""
    *content, last = lines
    indent = last.text
    if not _SPACES_ONLY.fullmatch(indent):
        raise KdlSyntaxError(last.offset, 'the closing """ must stand on a line of its own')
    parts: list[str] = []
    for line in content:
        if _SPACES_ONLY.fullmatch(line.text):
            parts.append("")
        elif line.text.startswith(indent):
            parts.append(line.text[len(indent) :])
        else:
            raise KdlSyntaxError(
                line.offset,
                'this line must be indented at least as far as the closing """, and in the same way',
            )
    joined = "\n".join(parts)
    return joined if raw else "".join(_resolved(joined))
