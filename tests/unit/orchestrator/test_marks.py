"""Marks of a log: no output is taken for one, however it is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.executors.limited_log import LimitedLog
from solstice_orchestrator.marks import BEGIN, Announcements, Mark
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from solstice_orchestrator.web.rows import LogRows

ONE, TWO = BEGIN + "1" * 8, BEGIN + "2" * 8
EXPECTED = ((ONE, Mark.of("$ one")), (TWO, Mark.of("$ two")))


def read(pieces: list[bytes]) -> list[tuple[bool, bytes]]:
    """What is told, with neighbouring output joined."""
    announced = Announcements(EXPECTED)
    told: list[tuple[bool, bytes]] = []
    for each in [*(each for piece in pieces for each in announced.feed(piece)), announced.end()]:
        if each and not isinstance(each, Mark) and told and not told[-1][0]:
            told[-1] = (False, told[-1][1] + each)
        elif each:
            told.append((isinstance(each, Mark), bytes(each)))
    return told


@given(st.lists(st.integers(min_value=0, max_value=80)))
def test_announcements_are_found_however_the_output_is_cut(cuts: list[int]) -> None:
    output = f"{ONE}\n$ two\n! over{BEGIN}1{TWO}\nlast{BEGIN}2".encode()
    places = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    pieces = [output[begin:end] for begin, end in pairwise(places)]
    assert read(pieces) == [
        (True, b"$ one\n"),
        (False, f"$ two\n! over{BEGIN}1".encode()),
        (True, b"$ two\n"),
        (False, f"last{BEGIN}2".encode()),
    ]


def test_an_announcement_counts_once_and_in_its_order() -> None:
    output = f"{TWO}\n{ONE}\n{ONE}\n".encode()
    assert read([output]) == [(False, f"{TWO}\n".encode()), (True, b"$ one\n"), (False, f"{ONE}\n".encode())]


async def test_a_log_keeps_marks_between_its_head_and_its_tail() -> None:
    written: list[bytes] = []

    async def log(data: bytes) -> None:
        written.append(data)

    limited = LimitedLog(log, 40)
    await limited.mark(Mark.of("$ one"))
    await limited.write(b"a" * 29 + b"\n")
    await limited.write(b"b" * 50 + b"\n")
    await limited.mark(Mark.of("$ dropped around"))
    await limited.write(b"c" * 50 + b"\n12\n")
    await limited.mark(Mark.of("$ last"))
    await limited.write(b"3456")
    await limited.end()
    marks = [bytes(each) for each in written if isinstance(each, Mark)]
    assert [mark for mark in marks if mark.startswith(b"$")] == [
        b"$ one\n",
        b"$ dropped around\n",
        b"$ last\n",
    ]
    assert written[-3:] == [b"12\n", b"$ last\n", b"3456"]


@pytest.mark.parametrize(
    "printed", [b"text", b"text\r", b"\x1b[1A\x1b[2K", b"\x1b]0;title", b"\x1b[31;8m", b"\xf0\x9f"]
)
async def test_output_reaches_no_row_of_a_mark(printed: bytes) -> None:
    rows = LogRows()
    chunks = [
        LogChunk(sequence=1, at=0.0, data=b"$ checkout\n! cancelled\n" + printed),
        LogChunk(sequence=2, at=0.0, data=b"$ <b>test</b>\n", kind=ChunkKind.MARK),
        LogChunk(sequence=3, at=0.0, data=b"\r\x1b[1A\x1b[2K\b\b\b! mine\n"),
    ]
    update = await rows.add(chunks)
    assert update is not None
    assert [row.html for row in update.rows if row.number is None] == ["$ &lt;b&gt;test&lt;/b&gt;"]
    texts = [row.text for row in update.rows]
    assert texts[:2] == ["$ checkout", "! cancelled"]
    assert texts[-1] == "! mine"
