"""A job's log as text: its chunks decoded, and what is missing between them named."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solstice_orchestrator.store.views import ChunkKind, LogChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Chunks with these sequences, both included, were never stored, or are no more."""

    first: int
    last: int


def utf8() -> codecs.IncrementalDecoder:
    """Decodes bytes however they were cut; what is no UTF-8 becomes U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


class LogText:
    """Chunks of one attempt, in order, as text; a character that a gap has torn is not made up from both its sides."""

    def __init__(self) -> None:
        self._decoder = utf8()
        self._sequence = 0

    def of(self, chunk: LogChunk, *, last: bool = False) -> str:
        """What its bytes mean behind those before; `last`: nothing will make half a character whole."""
        if chunk.sequence != self._sequence + 1:
            self._decoder = utf8()
        self._sequence = chunk.sequence
        if chunk.kind is ChunkKind.MARK:
            return chunk.data.decode(errors="replace")
        return self._decoder.decode(chunk.data, final=last)


def pieces(after: int, chunks: Sequence[LogChunk]) -> Iterator[LogGap | Sequence[LogChunk]]:
    """The chunks behind the sequence `after`, in stretches without a gap, and the gaps between them."""
    begin = 0
    for place, chunk in enumerate(chunks):
        if chunk.sequence > after + 1:
            if place > begin:
                yield chunks[begin:place]
            yield LogGap(first=after + 1, last=chunk.sequence - 1)
            begin = place
        after = chunk.sequence
    if chunks[begin:]:
        yield chunks[begin:]
