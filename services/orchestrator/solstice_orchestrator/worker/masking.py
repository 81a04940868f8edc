"""Mask secrets in a job's output, which may be cut anywhere. Pure.

Masking finds the secret itself (each line of one with several), its forms in URLs, JSON, JSON within JSON, shells,
Python and hexadecimal digits (these digits in either case, the secret's own letters only as they are). It finds its
digits side by side, and its base64 form in both alphabets at any position in a longer text, with line breaks anywhere. Terminal escape sequences, mostly
colours, may stand anywhere within. This protects against accidents only: a job that wants to reveal a secret can always
encode it in another way.
"""

import base64
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from string import ascii_letters
from typing import Final
from urllib.parse import quote, quote_plus

LEAST_CHARACTERS: Final = 8
"""The least length of a secret or its lines. Shorter ones match by accident."""
MASK: Final = b"***"
_BREAKS: Final = b"\r\n"
_BEGINNING: Final = 64
"""The number of first bytes that decide whether the whole form is compared.

With few, a job could print the first bytes of a long secret over and over, and each place would be compared whole.
"""
_ESCAPE: Final = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|[ -/]{1,8}[0-~])")
"""A control sequence (ECMA-48), or one that chooses a character set, as `tput sgr0` writes.

Those with text of their own, such as titles and links, are not passed over: that text may hold the secret.
"""
_UNFINISHED: Final = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[ -/]{1,8})?\Z")
SLOW_FORMS: Final = 200
"""With more forms of secrets than this, a piece of output takes some 10 ms. A private key of 50 lines has 450."""
_MOST_PENDING: Final = 64 * 1024
"""The most bytes held back because of escape sequences within a secret."""
_URL_DIGITS: Final = re.compile(rb"%([0-9A-F]{2})")
_JSON_DIGITS: Final = re.compile(rb"\\(?:u([0-9a-f]{4})|.)", re.DOTALL)
"""A doubled backslash stands for one in the secret: no digits follow it."""
_X_DIGITS: Final = re.compile(rb"\\x([0-9a-f]{2})")
_U_DIGITS: Final = re.compile(rb"\\u([0-9a-f]{4})")
_ALL_DIGITS: Final = re.compile(rb"(.+)")
_NO_DIGITS: Final = re.compile(rb"(?!)()")


class Masking:
    """Masks the output of one attempt: `feed` it each piece, then call `end`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = list(secrets)
        self._plain = tuple({needle for secret in known for needle in _plain(secret)})
        self._encoded = tuple({needle for secret in known for needle in _encoded(secret)})
        """Forms that are found also with line breaks within them."""
        needles = (*(needle.lower for needle in self._plain), *(needle.lower() for needle in self._encoded))
        self._beginnings = frozenset(
            needle[:length] for needle in needles for length in range(1, _BEGINNING + 1)
        )
        """The possible beginnings of all forms, in lower case."""
        self._longest = max((len(needle.lower) for needle in self._plain), default=0)
        if self._encoded:
            # A line break of two bytes after every character makes it three times as long.
            self._longest = max(self._longest, 3 * max(map(len, self._encoded)))
        self._pending = b""
        self.is_slow = len(needles) > SLOW_FORMS
        """Whether masking takes so long that it should not keep an event loop from other work."""

    def feed(self, data: bytes) -> bytes:
        """Return the masked output, holding back an end that may begin a secret."""
        data = self._pending + data
        text = _Text(data)
        spans, cut = self._spans(text.flat), self._open(text.flat)
        for start, end in spans:
            if start < cut < end:
                cut = start
        position = text.position(cut) if cut < len(text.flat) else text.end
        if len(data) - position > max(_MOST_PENDING, self._longest):
            cut, position = len(text.flat), text.end
        self._pending = data[position:]
        return _without(data[:position], [text.span(span) for span in spans if span[1] <= cut])

    def end(self) -> bytes:
        """Return the held back output, with whole secrets masked."""
        data, self._pending = self._pending, b""
        return self._masked(data)

    def masked(self, text: str) -> str:
        """Return a complete text with its secrets masked."""
        return self._masked(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def masked_beginning(self, text: str) -> str:
        """Return a text that was cut, with its secrets masked.

        Half of one at its end is left out.
        """
        return copy(self).feed(text.encode(errors="surrogateescape")).decode(errors="replace")

    def _masked(self, data: bytes) -> bytes:
        text = _Text(data)
        return _without(data, [text.span(span) for span in self._spans(text.flat)])

    def _spans(self, data: bytes) -> Sequence[tuple[int, int]]:
        """Return start and end of each secret, in order, with overlapping ones merged."""
        lower = data.lower()
        spans = [
            (start, start + len(needle.lower))
            for needle in self._plain
            for start in _positions(lower, needle.lower)
            if needle.has_case_of(data, start)
        ]
        if self._encoded:
            spans += self._spans_across_breaks(data)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _spans_across_breaks(self, data: bytes) -> Sequence[tuple[int, int]]:
        flat = data.translate(None, _BREAKS)
        spans = [
            (start, start + len(needle)) for needle in self._encoded for start in _positions(flat, needle)
        ]
        if not spans or len(flat) == len(data):
            return spans
        # The position of each byte of the flat text in the whole one.
        positions = [position for position, byte in enumerate(data) if byte not in _BREAKS]
        return [(positions[start], positions[end - 1] + 1) for start, end in spans]

    def _open(self, data: bytes) -> int:
        """Return from where on the end of `data` may begin a secret."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            if data[start : start + 1].lower() in self._beginnings and self._begins(data[start:]):
                return start
        return len(data)

    def _begins(self, tail: bytes) -> bool:
        """Whether `tail`, the end of the known output, may begin a secret without completing it."""
        if tail[:_BEGINNING].lower() in self._beginnings:
            lower = tail.lower()
            if any(_begins(each.lower, lower) and each.has_case_of(tail, 0) for each in self._plain):
                return True
        if tail[: 3 * _BEGINNING].translate(None, _BREAKS)[:_BEGINNING].lower() not in self._beginnings:
            return False
        flat = tail.translate(None, _BREAKS)
        return any(_begins(needle, flat) for needle in self._encoded)


class _Text:
    """Output without its escape sequences, and the original position of each remaining byte."""

    def __init__(self, data: bytes) -> None:
        unfinished = _UNFINISHED.search(data, max(0, len(data) - 80)) if b"\x1b" in data else None
        self.end = unfinished.start() if unfinished else len(data)
        """Where an unfinished escape sequence begins."""
        self._begins, self._positions, pieces, done, length = [0], [0], [], 0, 0
        for escape in _ESCAPE.finditer(data, 0, self.end) if b"\x1b" in data else ():
            pieces.append(data[done : escape.start()])
            length, done = length + escape.start() - done, escape.end()
            self._begins.append(length)
            self._positions.append(done)
        self.flat = b"".join((*pieces, data[done : self.end])) if pieces or unfinished else data

    def position(self, at: int) -> int:
        piece = bisect_right(self._begins, at) - 1
        return self._positions[piece] + at - self._begins[piece]

    def span(self, span: tuple[int, int]) -> tuple[int, int]:
        return self.position(span[0]), self.position(span[1] - 1) + 1


@dataclass(frozen=True, slots=True)
class _Needle:
    """A form of a secret: its bytes in lower case, and its case-sensitive letters.

    `cased` holds the position and byte of each of these letters.
    """

    lower: bytes
    cased: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, form: str, digits: "re.Pattern[bytes]" = _NO_DIGITS) -> "_Needle":
        """Make the needle of a form; the first group of `digits` matches either case."""
        data = form.encode()
        free = {position for match in digits.finditer(data) for position in range(*match.span(1))}
        cased = tuple(
            (at, byte) for at, byte in enumerate(data) if at not in free and chr(byte) in ascii_letters
        )
        return cls(data.lower(), cased)

    def has_case_of(self, data: bytes, start: int) -> bool:
        """Return whether the case-sensitive letters of needle and data agree, from `start` on."""
        original = data[start : start + len(self.lower)]
        return all(original[at] == byte for at, byte in self.cased if at < len(original))


def _plain(secret: str) -> Iterable[_Needle]:
    """Yield the forms of each line; the whole secret when all lines are too short."""
    lines = [line for line in secret.splitlines() if len(line) >= LEAST_CHARACTERS]
    for line in lines:
        yield from _forms(line)
    if not lines:
        yield _Needle.of(secret)


def _forms(line: str) -> Iterator[_Needle]:
    for url in (quote(line, ""), quote(line), quote_plus(line), quote(line, "!'()*")):
        yield _Needle.of(url, _URL_DIGITS)
    for document in (json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]):
        # Go, Rails and others escape the characters that are special in HTML.
        for escaped in ("", "<>&", "<>&'"):
            for slash in ("/", "\\/"):
                yield _Needle.of(_unicode_escaped(document, escaped).replace("/", slash), _JSON_DIGITS)
        yield _Needle.of(json.dumps(document)[1:-1])
    for between in ("", " ", ":"):
        yield _Needle.of(between.join(f"{byte:02x}" for byte in line.encode()), _ALL_DIGITS)
    # Each character escaped, whether it needs it or not.
    yield _Needle.of("".join(f"%{byte:02X}" for byte in line.encode()), _URL_DIGITS)
    yield _Needle.of("".join(f"\\x{byte:02x}" for byte in line.encode()), _X_DIGITS)
    utf16 = line.encode("utf-16-be")
    yield _Needle.of("".join(f"\\u{utf16[at : at + 2].hex()}" for at in range(0, len(utf16), 2)), _U_DIGITS)
    for python in (repr(line)[1:-1], repr(line.encode())[2:-1]):
        yield _Needle.of(python, _X_DIGITS)
    yield _Needle.of(line)
    yield _Needle.of(shlex.quote(line).removeprefix("'").removesuffix("'"))
    yield _Needle.of(line.replace("'", "'\\''"))
    yield _Needle.of(re.sub(r"([^\w@%+=:,./-])", r"\\\1", line, flags=re.ASCII))


def _unicode_escaped(document: str, characters: str) -> str:
    return "".join(f"\\u{ord(each):04x}" if each in characters else each for each in document)


def _encoded(secret: str) -> Iterable[bytes]:
    """Yield the hexadecimal digits of a secret, and its base64 forms at any position.

    In base64, the text before it shifts it by none, one or two bytes, and the characters at its ends depend on its
    neighbours.
    """
    content = secret.encode()
    yield content.hex().encode()
    yield content.hex().upper().encode()
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        for offset, first in enumerate((0, 2, 3)):
            needle = encode(b"\0" * offset + content)[first : (offset + len(content)) * 8 // 6]
            if len(needle) >= LEAST_CHARACTERS:
                yield needle


def _positions(data: bytes, needle: bytes) -> Iterable[int]:
    """Yield each position of the needle, overlapping ones too."""
    start = data.find(needle)
    while start >= 0:
        yield start
        start = data.find(needle, start + 1)


def _begins(needle: bytes, tail: bytes) -> bool:
    return len(tail) < len(needle) and needle.startswith(tail)


def _without(data: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    pieces, done = [], 0
    for start, end in spans:
        # The colours within it apply to the text behind it too.
        pieces += [data[done:start], MASK, *_ESCAPE.findall(data, start, end)]
        done = end
    return b"".join((*pieces, data[done:]))
