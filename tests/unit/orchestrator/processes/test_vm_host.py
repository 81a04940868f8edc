"""The log of a guest, with the marks of ended steps."""

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.processes.vm_host import LogOfSteps

TOKEN = "0123456789abcdef"
MARK = b"\0" + TOKEN.encode() + b" "


def fed(*pieces: bytes) -> LogOfSteps:
    log = LogOfSteps(TOKEN)
    for piece in pieces:
        log.feed(piece)
    return log


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(0, 120), max_size=6),
)
def test_marks_are_found_and_everything_else_is_passed_on(words: Sequence[bytes], cuts: list[int]) -> None:
    text = b"".join(word + MARK + f"{number}\n".encode() for number, word in enumerate(words))
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    log = fed(*(text[begin:end] for begin, end in itertools.pairwise(places)))
    assert log.waiting == b"".join(words)
    assert log.mark == str(len(words) - 1)


@pytest.mark.parametrize("text", [b"\0", MARK[:5], b"a\0b", MARK[:-1] + b"x", b"\0" + b"f" * 32])
def test_what_only_looks_like_a_mark_is_passed_on(text: bytes) -> None:
    assert fed(text, b"more").waiting == text + b"more"


def test_a_mark_without_an_end_does_not_fill_the_memory() -> None:
    assert fed(MARK, *[b"x" * 1000] * 100).waiting == MARK + b"x" * 100_000


def test_the_log_is_written_in_pieces_that_a_pipe_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_descriptor: int, piece: bytes) -> int:
        written.append(piece)
        return len(piece)

    monkeypatch.setattr(os, "write", write)
    log = fed(b"x" * 10_000)
    while log.waiting:
        log.move()
    assert [len(piece) for piece in written] == [4096, 4096, 1808]
