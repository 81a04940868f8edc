"""Logs as text: gaps, and characters that are split between chunks."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.store.views import ChunkKind, LogChunk
from solstice_orchestrator.web.formats.log_text import LogGap, LogText, pieces


def chunks(*sequences: int) -> list[LogChunk]:
    return [LogChunk(sequence=sequence, at=1.0, data=b"x") for sequence in sequences]


@given(st.integers(0, 20), st.sets(st.integers(1, 40), max_size=20))
def test_gaps_and_chunks_together_are_everything_once(after: int, there: set[int]) -> None:
    known = chunks(*(each for each in sorted(there) if each > after))
    seen: list[int] = []
    reported: list[LogChunk] = []
    for piece in pieces(after, known):
        if isinstance(piece, LogGap):
            missing = range(piece.first, piece.last + 1)
            assert missing
            assert not set(missing) & there
            seen += missing
        else:
            assert piece
            reported += piece
            seen += [chunk.sequence for chunk in piece]
    assert reported == known
    assert seen == list(range(after + 1, known[-1].sequence + 1 if known else after + 1))


def test_a_character_torn_by_a_gap_is_not_made_up() -> None:
    text = LogText()
    sun = "🌞".encode()
    reported = [
        text.of(LogChunk(sequence=sequence, at=1.0, data=data))
        for sequence, data in ((1, b"a" + sun[:2]), (3, sun[2:] + b"b"), (4, sun[:1]), (5, sun[1:]))
    ]
    assert reported == ["a", "\ufffd\ufffdb", "", "🌞"]


def test_a_mark_between_the_halves_of_a_character_leaves_it_whole() -> None:
    text = LogText()
    reported = [
        text.of(LogChunk(sequence=sequence, at=1.0, data=data, kind=kind))
        for sequence, data, kind in (
            (1, "é".encode()[:1], ChunkKind.OUTPUT),
            (2, b"step 2 \xff", ChunkKind.MARK),
            (3, "é".encode()[1:], ChunkKind.OUTPUT),
        )
    ]
    assert reported == ["", "step 2 \ufffd", "é"]
