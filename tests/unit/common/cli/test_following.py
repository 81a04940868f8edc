"""A followed log on a terminal or pipe: no job can print our marks."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.cli.following import INDENT, LogWriter

PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), st.sampled_from(["$ checkout\n", "! ended\n", "! two\nlines\x1b[2J\n"])),
        st.tuples(
            st.just("output"),
            st.lists(
                st.sampled_from(
                    ["$ checkout", "! ended", "\n", "\r", "\r\n", " ", "\x1b[8m", "\x1b[2K", "\x1b", "[1G"]
                ),
                max_size=6,
            ).map("".join),
        ),
    ),
    max_size=12,
)
LABELS = ("", "lint | ")
EDGE = re.compile(r"[\r\n]+")


def written(pieces: list[tuple[str, str]], label: str, *, terminal: bool, whole_lines: bool) -> str:
    reported: list[str] = []
    log = LogWriter(reported.append, label, terminal=terminal, whole_lines=whole_lines)
    for kind, text in pieces:
        log.chunk({"kind": kind, "text": text})
    log.finish()
    return "".join(reported)


@pytest.mark.parametrize("label", LABELS, ids=["one log", "of several"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("whole_lines", [True, False], ids=["whole lines", "as it comes"])
@given(pieces=PIECES)
def test_only_marks_begin_at_the_edge(
    label: str, terminal: bool, whole_lines: bool, pieces: list[tuple[str, str]]
) -> None:
    shown = written(pieces, label, terminal=terminal, whole_lines=whole_lines)
    at_edge = []
    for row in EDGE.split(shown):
        # On a terminal colours are put back before a mark.
        behind = row.removeprefix("\x1b[0m").removeprefix(label) if terminal else row.removeprefix(label)
        if behind and not behind.startswith(INDENT) and behind != "\x1b[0m":
            at_edge.append(behind.removesuffix("\x1b[0m"))
    marks = {"$ checkout\n": "$ checkout", "! ended\n": "! ended", "! two\nlines\x1b[2J\n": "! two lines [2J"}
    assert at_edge == [marks[text] for kind, text in pieces if kind == "mark"]


def test_output_is_shown_as_it_comes_and_whole_lines_once_they_end() -> None:
    for whole_lines, first in ((False, ["  ..", "."]), (True, [])):
        reported: list[str] = []
        log = LogWriter(reported.append, whole_lines=whole_lines)
        log.output("..")
        log.output(".")
        assert reported == first
        log.mark("! ended")
        assert "".join(reported) == "  ...\n! ended\n"


def test_a_line_without_an_end_is_not_lost() -> None:
    reported: list[str] = []
    log = LogWriter(reported.append, "lint | ", whole_lines=True)
    log.output("one\ntw")
    log.output("o")
    log.finish()
    log.finish()
    assert reported == ["lint |   one\n", "lint |   two\n"]


def test_windows_lines_and_empty_ones_stay_as_they_are() -> None:
    pieces = [("output", "one\r"), ("output", "\n\ntwo\r\n 50%\r100%\n")]
    assert written(pieces, "", terminal=False, whole_lines=False) == "  one\r\n\n  two\r\n   50%\r  100%\n"


def test_a_job_cannot_hide_a_mark_behind_its_colours() -> None:
    pieces = [("output", "\x1b[8m"), ("mark", "! ended\n")]
    assert written(pieces, "", terminal=True, whole_lines=False) == "  \x1b[8m\x1b[0m\n! ended\n"
