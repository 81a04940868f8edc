"""Secrets are taken out of what a job prints, however the output is cut into pieces. Pure.

What is looked for: the secret itself (of one with several lines each line), and what base64 makes of it, in both
alphabets, wherever in a longer text it stands and wherever lines are broken. It is a net against accidents: a job that
wants to give a secret away can always change it into something that nobody knows.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Final

LEAST_CHARACTERS: Final = 8
"""Of a secret, or a line of one: shorter ones would be found where nobody wrote them."""
MASK: Final = b"***"
_BREAKS: Final = b"\r\n"
_BEGINNING: Final = 4
"""So many bytes decide whether it is worth while to look closer."""


class Masking:
    """The output of one attempt without its secrets; `feed` what comes, and `end` it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = list(secrets)
        self._plain = tuple({needle for secret in known for needle in _plain(secret)})
        self._encoded = tuple({needle for secret in known for needle in _encoded(secret)})
        """Found also where lines are broken within them."""
        needles = (*self._plain, *self._encoded)
        self._beginnings = frozenset(
            needle[:length] for needle in needles for length in range(1, _BEGINNING + 1)
        )
        self._longest = max((len(needle) for needle in self._plain), default=0)
        if self._encoded:
            # With a line break of two bytes after every character there would be thrice as much of it.
            self._longest = max(self._longest, 3 * max(map(len, self._encoded)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown by now: all but an end that may be the beginning of a secret."""
        data = self._held + data
        spans, cut = self._spans(data), self._open(data)
        for start, end in spans:
            if start < cut < end:
                cut = start
        self._held = data[cut:]
        return _without(data[:cut], [span for span in spans if span[1] <= cut])

    def end(self) -> bytes:
        """What was held back: it was no secret, unless a whole one stands in it."""
        data, self._held = self._held, b""
        return _without(data, self._spans(data))

    def masked(self, text: str) -> str:
        """A whole text without them."""
        data = text.encode(errors="surrogateescape")
        return _without(data, self._spans(data)).decode(errors="surrogateescape")

    def _spans(self, data: bytes) -> Sequence[tuple[int, int]]:
        """From where to where secrets stand, in order, those that overlap as one."""
        found = [(start, start + len(needle)) for needle in self._plain for start in _places(data, needle)]
        if self._encoded:
            found += self._broken(data)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _broken(self, data: bytes) -> Sequence[tuple[int, int]]:
        flat = data.translate(None, _BREAKS)
        found = [(start, start + len(needle)) for needle in self._encoded for start in _places(flat, needle)]
        if not found or len(flat) == len(data):
            return found
        # Where each byte of the flat text stands in the whole one.
        places = [place for place, byte in enumerate(data) if byte not in _BREAKS]
        return [(places[start], places[end - 1] + 1) for start, end in found]

    def _open(self, data: bytes) -> int:
        """From where on the end of `data` may be the beginning of a secret."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            if data[start : start + 1] in self._beginnings and self._begins(data[start:]):
                return start
        return len(data)

    def _begins(self, tail: bytes) -> bool:
        """Whether `tail`, at the end of what is known, may be the beginning of a secret, and is not all of it."""
        if tail[:_BEGINNING] in self._beginnings and any(_begins(needle, tail) for needle in self._plain):
            return True
        if tail[: 3 * _BEGINNING].translate(None, _BREAKS)[:_BEGINNING] not in self._beginnings:
            return False
        flat = tail.translate(None, _BREAKS)
        return any(_begins(needle, flat) for needle in self._encoded)


def _plain(secret: str) -> Iterable[bytes]:
    """The secret, or each of its lines; the whole of it when they are all too short to be looked for."""
    lines = [line for line in secret.splitlines() if len(line) >= LEAST_CHARACTERS]
    return [line.encode() for line in lines or [secret]]


def _encoded(secret: str) -> Iterable[bytes]:
    """What base64 makes of it, wherever in a longer text it stands.

    What stands before it shifts it by none, one or two bytes, and the characters at its ends depend on its neighbours.
    """
    content = secret.encode()
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        for offset, first in enumerate((0, 2, 3)):
            needle = encode(b"\0" * offset + content)[first : (offset + len(content)) * 8 // 6]
            if len(needle) >= LEAST_CHARACTERS:
                yield needle


def _places(data: bytes, needle: bytes) -> Iterable[int]:
    """Where it begins, also within itself."""
    start = data.find(needle)
    while start >= 0:
        yield start
        start = data.find(needle, start + 1)


def _begins(needle: bytes, tail: bytes) -> bool:
    return len(tail) < len(needle) and needle.startswith(tail)


def _without(data: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    pieces, done = [], 0
    for start, end in spans:
        pieces += [data[done:start], MASK]
        done = end
    return b"".join((*pieces, data[done:]))
