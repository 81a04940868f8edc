"""Lines of a log that the orchestrator writes, and how they are told from what a job prints. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Self

BEGIN: Final = "\x1e"
"""Begins every announcement: output that does not end with it is passed on at once."""


class Mark(bytes):
    """A whole line of ours for the log: nothing that a job prints can be one."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """The line that says so."""
        return cls(f"{text}\n".encode())


class Announcements:
    """Finds in a job's output where its steps begin; each step is announced by a line that nobody can guess.

    Each line counts once, and in the order of the steps; what is shown in its place is ours.
    """

    def __init__(self, expected: Iterable[tuple[str, Mark]]) -> None:
        self._expected = deque((line.encode() + b"\n", mark) for line, mark in expected)
        self._held = b""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The output up to here without announcements, and the marks among it, in order."""
        data, self._held = self._held + data, b""
        told: list[bytes] = []
        while self._expected:
            line, mark = self._expected[0]
            before, found, after = data.partition(line)
            if not found:
                start = data.rfind(BEGIN.encode())
                if start >= 0 and line.startswith(data[start:]):
                    data, self._held = data[:start], data[start:]
                break
            self._expected.popleft()
            told += [before, mark] if before else [mark]
            data = after
        return [*told, data] if data else told

    def end(self) -> bytes:
        """What was held back, and was no announcement."""
        held, self._held = self._held, b""
        return held
