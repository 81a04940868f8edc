"""A job's log as rows for a page: decoded, coloured, with gaps marked."""

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from solstice_orchestrator.web.api.following import BATCH, LogPosition
from solstice_orchestrator.web.formats.ansi import LogRow, RowsUpdate, Terminal
from solstice_orchestrator.web.formats.log_text import utf8

MAX_ROWS: Final = 2000
"""Rows of the first page; the newest ones, since a job reports its errors there."""
MAX_RENDERED_BYTES: Final = 2_000_000
"""Characters of HTML in the first page."""
LIVE_ROWS: Final = 10_000
"""The most rows of one update; a page of a living job keeps no more (log.js)."""
_LONG: Final = 8 * 1024
"""Bytes above which rendering yields to the event loop."""


@dataclass(slots=True)
class LogRows:
    """One attempt's chunks, in order, become updates of rows.

    The same chunks give the same rows in any batches.
    """

    sequence: int = 0
    _decoder: codecs.IncrementalDecoder = field(default_factory=utf8)
    _terminal: Terminal = field(default_factory=Terminal)

    @property
    def line_is_open(self) -> bool:
        """Whether the last row of the last update may still change."""
        return self._terminal.line_is_open

    async def add(self, chunks: Sequence[LogChunk], newest: int | None = None) -> RowsUpdate | None:
        """The changes by these chunks; a gap in their sequence becomes a remark.

        With `newest`, the update has about so many rows at most, the last ones.
        """
        self._terminal.newest = newest
        if sum(len(chunk.data) for chunk in chunks) > _LONG:
            return await asyncio.to_thread(self._add, chunks)
        return self._add(chunks)

    def end(self) -> RowsUpdate | None:
        """The attempt has ended: an incomplete character is shown as such."""
        self._terminal.feed(self._decoder.decode(b"", final=True))
        return self._terminal.take()

    def _add(self, chunks: Sequence[LogChunk]) -> RowsUpdate | None:
        for chunk in chunks:
            if chunk.sequence != self.sequence + 1:
                self._terminal.feed(self._decoder.decode(b"", final=True))
                self._terminal.remark(
                    f"Output is missing here: pieces {self.sequence + 1} to {chunk.sequence - 1} were never stored."
                )
            self.sequence = chunk.sequence
            if chunk.kind is ChunkKind.MARK:
                self._terminal.feed(self._decoder.decode(b"", final=True))
                self._terminal.remark(chunk.data.decode(errors="replace").removesuffix("\n"))
            else:
                self._terminal.feed(self._decoder.decode(chunk.data))
        return self._terminal.take()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedLog:
    """The newest rows of a log as it was at `position`.

    `first` is the index of the first of them.
    """

    position: LogPosition
    first: int
    rows: Sequence[LogRow]


async def render_log(
    store: JobStore,
    job_id: str,
    attempt: int,
    *,
    ended: bool,
    line: int | None = None,
    service: str = "",
) -> RenderedLog:
    """Return the rows of a job's or service's log that a page first shows.

    They are the log's end, or the rows around a line.
    """
    rows, log = deque[LogRow](maxlen=MAX_ROWS), LogRows()
    total = 0
    last = None if line is None else line + MAX_ROWS // 2
    async with aclosing(
        _updates(store, log, job_id, attempt, ended=ended, all_rows=line is not None, service=service)
    ) as updates:
        async for update in updates:
            while rows and total > update.first:
                rows.pop()
                total -= 1
            shown = [row for row in update.rows if last is None or not _is_behind(row, last)]
            rows.extend(shown)
            total = update.first + len(shown)
            if len(shown) < len(update.rows):
                break
    size = sum(len(row.html) for row in rows)
    while size > MAX_RENDERED_BYTES:
        # The requested line stays.
        before = line is None or ((rows[0].number or 0) < line and _is_behind(rows[-1], line))
        size -= len((rows.popleft() if before else rows.pop()).html)
        total -= not before
    return RenderedLog(position=LogPosition(attempt, log.sequence), first=total - len(rows), rows=list(rows))


async def _updates(
    store: JobStore,
    log: LogRows,
    job_id: str,
    attempt: int,
    *,
    ended: bool,
    all_rows: bool,
    service: str,
) -> AsyncGenerator[RowsUpdate, None]:
    """Yield the changes by each chunk alone: it may hold very many rows."""
    newest = None if all_rows else MAX_ROWS
    while attempt:
        page = await store.log(job_id, attempt=attempt, after=log.sequence, limit=BATCH, service=service)
        if not page or not page.chunks:
            break
        for chunk in page.chunks:
            if update := await log.add((chunk,), newest):
                yield update
    if ended and (update := log.end()):
        yield update


def _is_behind(row: LogRow, line: int) -> bool:
    """Whether the row comes after that line of the job's output."""
    return row.number is not None and row.number > line
