"""Files of exported dead letters, of which one line at a time is in memory."""

import shutil
import sys
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from solstice_common.broker import DeadLetter
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.export_lines import InvalidLine, exported, imported
from solstice_common.errors import ConfigurationError

STANDARD_STREAM: Final = Path("-")
"""Stands for standard output of an export, and for standard input of an import."""

LineSpan = tuple[int, int]
"""Where a line begins, and its length."""


class LinesToExport:
    """Lines in a file of their own until all are there.

    A queue is not held while a slow reader of our output waits, and an error leaves the old file as it was.
    """

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines

    def add(self, found: DeadLetterFacts) -> LineSpan:
        """Write a dead letter; return where."""
        start = self._lines.tell()
        try:
            self._lines.write(exported(found).encode() + b"\n")
            self._lines.flush()
        except OSError as error:
            error.filename = f"temporary files in {tempfile.gettempdir()} (TMPDIR)"
            raise
        return start, self._lines.tell() - start

    def copy(self, line_spans: list[LineSpan], to: IO[bytes]) -> None:
        """Write the lines in this order."""
        for start, length in line_spans:
            self._lines.seek(start)
            to.write(self._lines.read(length))


@contextmanager
def lines_to_export() -> Iterator[LinesToExport]:
    """Open an empty file of lines, removed at the end."""
    lines = tempfile.TemporaryFile()  # noqa: SIM115  closed below
    try:
        yield LinesToExport(lines)
    finally:
        with suppress(OSError):  # of a full disk, again: it flushes what it could not write before
            lines.close()


class LinesToImport:
    """The lines of an exported file, which can be read several times."""

    def __init__(self, path: Path, lines: IO[bytes]) -> None:
        self._path = path
        self._lines = lines

    def read(self, queue_for: Callable[[str], str]) -> Iterator[tuple[str, DeadLetter]]:
        """Yield the dead letters, one by one, each with the queue that it goes to.

        ConfigurationError names the first wrong line, also one whose queue `queue_for` refuses.
        """
        self._lines.seek(0)
        for number, line in enumerate(self._lines, start=1):
            # Some editors begin a file with a byte order mark.
            text = line.removeprefix(BOM_UTF8) if number == 1 else line
            if text.strip():
                dead_letter = self._imported(number, text)
                try:
                    queue = queue_for(dead_letter.queue)
                except ConfigurationError as error:
                    raise ConfigurationError(
                        f"{self._path}: line {number}: {str(error).removeprefix('--')}"
                    ) from None
                yield queue, dead_letter

    def _imported(self, number: int, line: bytes) -> DeadLetter:
        try:
            return imported(line.decode())
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{self._path}: line {number}: byte {error.start} is not UTF-8: save the file as UTF-8"
            ) from None
        except InvalidLine as error:
            raise ConfigurationError(f"{self._path}: line {number} {error}") from None


@contextmanager
def lines_to_import(path: Path) -> Iterator[LinesToImport]:
    """Open an exported file or a pipe; ConfigurationError when it cannot be read."""
    with ExitStack() as stack:
        try:
            lines: IO[bytes] = (
                sys.stdin.buffer if path == STANDARD_STREAM else stack.enter_context(path.open("rb"))
            )
            if not lines.seekable():
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(lines, copy)
                lines = copy
        except OSError as error:
            raise ConfigurationError(f"FILE: {path}: {error.strerror or error}") from None
        yield LinesToImport(path if path != STANDARD_STREAM else Path("standard input"), lines)
