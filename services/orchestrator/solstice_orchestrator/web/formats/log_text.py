"""Decode the chunks of a job's log as text, and find the gaps between them."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solstice_orchestrator.store.views import ChunkKind, LogChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Missing chunks, from sequence `first` to `last`, both included.

    They were never stored, or are deleted.
    """

    first: int
    last: int


def utf8() -> codecs.IncrementalDecoder:
    """Return a decoder for pieces of any size; invalid UTF-8 becomes U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


class LogText:
    """Decodes the chunks of one attempt in order.

    The two sides of a gap are never joined to one character.
    """

    def __init__(self) -> None:
        self._decoder = utf8()
        self._sequence = 0

    def of(self, chunk: LogChunk, *, last: bool = False) -> str:
        """Return the chunk's text; `last` says that no more bytes of a character will come."""
        if chunk.sequence != self._sequence + 1:
            self._decoder = utf8()
        self._sequence = chunk.sequence
        if chunk.kind is ChunkKind.MARK:
            return chunk.data.decode(errors="replace")
        return self._decoder.decode(chunk.data, final=last)


def pieces(after: int, chunks: Sequence[LogChunk]) -> Iterator[LogGap | Sequence[LogChunk]]:
    """Yield the chunks behind `after`, split at gaps, and the gaps between them."""
    begin = 0
    for index, chunk in enumerate(chunks):
        if chunk.sequence > after + 1:
            if index > begin:
                yield chunks[begin:index]
            yield LogGap(first=after + 1, last=chunk.sequence - 1)
            begin = index
        after = chunk.sequence
    if chunks[begin:]:
        yield chunks[begin:]
