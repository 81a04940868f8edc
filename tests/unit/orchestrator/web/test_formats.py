"""Cursors, ranges and gaps: what the web part reads and says, without any web."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.store.views import LogChunk
from solstice_orchestrator.web.formats.byte_ranges import ByteRange, byte_range
from solstice_orchestrator.web.formats.cursors import cursor_of, place_of
from solstice_orchestrator.web.formats.log_text import LogGap, LogText, pieces

ID = "0190a5b2-0000-7000-8000-00000000002a"
WANTED = {"repository": "lantern/harbour", "state": None}

ids = st.uuids().map(str)
filters = st.dictionaries(st.sampled_from(("repository", "ref", "state")), st.none() | st.text(max_size=9))


@given(ids, filters)
def test_a_cursor_leads_back_to_its_place(last: str, wanted: Mapping[str, object]) -> None:
    assert place_of(cursor_of(last, "runs", wanted), "runs", wanted) == last


@given(ids, filters, filters)
def test_a_cursor_is_good_for_its_own_filters_alone(
    last: str, wanted: Mapping[str, object], others: Mapping[str, object]
) -> None:
    def asked(given: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in given.items() if value is not None}

    found = place_of(cursor_of(last, "runs", wanted), "runs", others)
    assert found == (last if asked(wanted) == asked(others) else None)
    assert place_of(cursor_of(last, "runs", wanted), "jobs", wanted) is None


@given(st.text(max_size=60))
def test_what_is_no_cursor_leads_nowhere(text: str) -> None:
    assert place_of(text, "runs", WANTED) is None


@given(st.integers(0, 31), st.sampled_from("AZaz09-_"))
def test_a_changed_cursor_leads_nowhere(place: int, letter: str) -> None:
    cursor = cursor_of(ID, "runs", WANTED)
    changed = cursor[:place] + letter + cursor[place + 1 :]
    assert place_of(changed, "runs", WANTED) == (ID if changed == cursor else None)


def test_a_cursor_tells_nothing_that_is_worth_reading() -> None:
    cursor = cursor_of(ID, "runs", WANTED)
    assert len(cursor) == 32
    assert str(UUID(ID).hex) not in cursor
    assert "lantern" not in cursor


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-9", ByteRange(0, 9)),
        ("bytes=5-", ByteRange(5, None)),
        ("bytes=-7", ByteRange(-7, None)),
        ("Bytes = 0-0", ByteRange(0, 0)),
        ("bytes=9-5", None),
        ("bytes=-0", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=\u0661-\u0662", None),
        ("bytes=" + "9" * 16 + "-", None),
        ("", None),
        (None, None),
    ],
)
def test_one_range_is_read_and_all_else_means_everything(
    header: str | None, expected: ByteRange | None
) -> None:
    assert byte_range(header) == expected


def chunks(*sequences: int) -> list[LogChunk]:
    return [LogChunk(sequence=sequence, at=1.0, data=b"x") for sequence in sequences]


@given(st.integers(0, 20), st.sets(st.integers(1, 40), max_size=20))
def test_gaps_and_chunks_together_are_everything_once(after: int, there: set[int]) -> None:
    known = chunks(*(each for each in sorted(there) if each > after))
    seen: list[int] = []
    told: list[LogChunk] = []
    for piece in pieces(after, known):
        if isinstance(piece, LogGap):
            missing = range(piece.first, piece.last + 1)
            assert missing
            assert not set(missing) & there
            seen += missing
        else:
            assert piece
            told += piece
            seen += [chunk.sequence for chunk in piece]
    assert told == known
    assert seen == list(range(after + 1, known[-1].sequence + 1 if known else after + 1))


def test_a_character_torn_by_a_gap_is_not_made_up() -> None:
    text = LogText()
    sun = "🌞".encode()
    told = [
        text.of(LogChunk(sequence=sequence, at=1.0, data=data))
        for sequence, data in ((1, b"a" + sun[:2]), (3, sun[2:] + b"b"), (4, sun[:1]), (5, sun[1:]))
    ]
    assert told == ["a", "\ufffd\ufffdb", "", "🌞"]
