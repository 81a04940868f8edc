"""The log's rows are safe for any output, and equal for any cuts."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.web.formats.ansi import MAX_LINE, LogRow, Terminal, nearest, palette_css, rgb

RED = '<span class="f1">red</span>'


def rows_of(*pieces: str) -> list[LogRow]:
    """The final rows of a reader that applies every update."""
    terminal, shown = Terminal(), list[LogRow]()
    for piece in pieces:
        terminal.feed(piece)
        update = terminal.take()
        if update is not None:
            assert update.first <= len(shown)
            shown[update.first :] = update.rows
    return shown


def html_of(*pieces: str) -> list[str]:
    return [row.html for row in rows_of(*pieces)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain", ["plain"], id="plain"),
        pytest.param("a\nb\n", ["a", "b"], id="lines"),
        pytest.param("a\r\nb", ["a", "b"], id="crlf"),
        pytest.param("a\n\n\nb", ["a", "", "", "b"], id="empty lines"),
        pytest.param("a\tb", ["a\tb"], id="tab"),
        pytest.param("<b a=\"1\" b='2'>&", ["&lt;b a=&quot;1&quot; b=&#x27;2&#x27;&gt;&amp;"], id="escaped"),
        pytest.param("\x1b[31mred\x1b[0m.", [RED + "."], id="colour"),
        pytest.param("\x1b[31mred\x1b[m.", [RED + "."], id="empty SGR resets"),
        pytest.param("\x1b[91;44mx", ['<span class="f9 b4">x</span>'], id="bright on blue"),
        pytest.param("\x1b[30mx", ['<span class="f0">x</span>'], id="black on the panel"),
        pytest.param("\x1b[30;41mx", ['<span class="f-panel b1">x</span>'], id="black on red"),
        pytest.param("\x1b[103mx", ['<span class="b11">x</span>'], id="bright background"),
        pytest.param(
            "\x1b[1;2;3;4;9mx", ['<span class="bold dim italic strike underline">x</span>'], id="flags"
        ),
        pytest.param("\x1b[1;2mx\x1b[22my", ['<span class="bold dim">x</span>y'], id="22 ends bold and dim"),
        pytest.param("\x1b[4mx\x1b[4:0my", ['<span class="underline">x</span>y'], id="4:0 ends underline"),
        pytest.param("\x1b[38;5;208mx", ['<span class="f208">x</span>'], id="256"),
        pytest.param("\x1b[48:5:208mx", ['<span class="b208">x</span>'], id="256 with colons"),
        pytest.param("\x1b[38;5;999mx", ["x"], id="no such colour"),
        pytest.param("\x1b[38;2;255;135;0mx", ['<span class="f208">x</span>'], id="RGB"),
        pytest.param("\x1b[38:2::255:135:0mx", ['<span class="f208">x</span>'], id="RGB with colons"),
        pytest.param("\x1b[38;2;255;135;0;1mx", ['<span class="f208 bold">x</span>'], id="RGB and more"),
        pytest.param("\x1b[38mx\x1b[38;2;1mx", ['x<span class="f16">x</span>'], id="RGB cut short"),
        pytest.param("\x1b[31;39mx", ["x"], id="default colour"),
        pytest.param("\x1b[31;7mx", ['<span class="f-panel b1">x</span>'], id="inverse"),
        pytest.param("\x1b[41;7mx", ['<span class="f1 b-panel">x</span>'], id="inverse of a background"),
        pytest.param("\x1b[31mred\nred", [RED, RED], id="style lasts over lines"),
        pytest.param("10%\r50%\r100%\n", ["100%"], id="progress"),
        pytest.param("10%\r\x1b[K50%", ["50%"], id="progress with erase"),
        pytest.param("10%\r\x1b[Kx\r\n", ["x"], id="progress, then crlf"),
        pytest.param("10%\r", ["10%"], id="a return alone shows what was there"),
        pytest.param("abc\x1b[2Kd", ["d"], id="erase line"),
        pytest.param("abc\x1b[Kd", ["abcd"], id="erase to the end"),
        pytest.param("|\b/\b-", ["-"], id="backspace"),
        pytest.param("\b\b", [], id="backspace on nothing"),
        pytest.param("\x1b]0;title\x07x", ["x"], id="title"),
        pytest.param("\x1b]8;;javascript:alert(1)\x1b\\x\x1b]8;;\x1b\\", ["x"], id="link"),
        pytest.param("\x1b]0;never ends\nx", ["", "x"], id="unended string ends with its line"),
        pytest.param("\x1b]0;cut\x1b[31mred", [RED], id="string cut by a sequence"),
        pytest.param("\x1b[2J\x1b[1;1H\x1b[?25l\x1b(B\x1b7\x1b=x", ["x"], id="screen control"),
        pytest.param("\x1b[?1mx\x1b[>4;1mx", ["xx"], id="private m is no SGR"),
        pytest.param("\x1b[31", [], id="unfinished sequence waits"),
        pytest.param("a\x00b\x07c\x7fd\x85e\x9bf", ["abcdef"], id="control characters"),
    ],
)
def test_text_becomes_these_rows(text: str, expected: list[str]) -> None:
    assert html_of(text) == expected


def test_open_line_is_shown_and_then_replaced() -> None:
    terminal = Terminal()
    terminal.feed("one\ntw")
    update = terminal.take()
    assert update is not None
    assert (update.first, [row.text for row in update.rows]) == (0, ["one", "tw"])
    terminal.feed("o\n")
    update = terminal.take()
    assert update is not None
    assert (update.first, [row.text for row in update.rows]) == (1, ["two"])
    assert terminal.take() is None


def test_shown_line_that_is_erased_is_taken_back() -> None:
    assert html_of("working", "\r\x1b[2K") == [""]


def test_remark_stands_between_lines_without_a_number() -> None:
    terminal = Terminal()
    terminal.feed("one\ntwo")
    terminal.remark("<gap>")
    terminal.feed("three\n")
    update = terminal.take()
    assert update is not None
    assert [(row.number, row.html) for row in update.rows] == [
        (1, "one"),
        (2, "two"),
        (None, "&lt;gap&gt;"),
        (3, "three"),
    ]


def test_endless_line_is_continued_as_the_next() -> None:
    rows = rows_of("x" * MAX_LINE, "y" * 3)
    assert [row.text for row in rows] == ["x" * MAX_LINE, "yyy"]


def test_backspace_makes_room_on_a_full_line() -> None:
    assert [row.text for row in rows_of("x" * MAX_LINE + "\by")] == ["x" * (MAX_LINE - 1) + "y"]


def test_every_colour_of_the_cube_is_nearest_to_itself() -> None:
    assert {index for index in range(16, 256) if rgb(nearest(*rgb(index))) != rgb(index)} == set()


def test_palette_has_a_class_for_every_colour() -> None:
    found = set(re.findall(r"^\.(f\d+)\{.*\.(b\d+)\{", palette_css(), re.MULTILINE))
    assert found == {(f"f{index}", f"b{index}") for index in range(256)}


FRAGMENTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *"\x1b\r\n\b\t<>&\"'",
            "\x1b[",
            "\x1b]",
            "\x1b[31m",
            "\x1b[38;2;1;2",
            ";3m",
            "\x1b[0m",
            "\x1b[7m",
            "\x1b[K",
            "\x1b[2K",
            "\x1b]8;;",
            "\x1b\\",
            "\x07",
            "\x1b(B",
            "\x1bP",
            "\x9b",
            "<script>",
            "\x1b[4:3m",
            "☃",
            "x" * 5000,
        ]
    ),
)
TAG = re.compile(r'<span class="[a-z0-9 -]+">|</span>')


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=30).map("".join))
def test_nothing_a_job_prints_is_markup(text: str) -> None:
    for row in rows_of(text):
        bare = TAG.sub("", row.html)
        assert "<" not in bare
        assert ">" not in bare
        assert '"' not in bare
        assert row.html.count("<span") == row.html.count("</span>")
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", row.html)


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=20))
def test_cuts_change_nothing(pieces: list[str]) -> None:
    whole = rows_of("".join(pieces))
    cut = rows_of(*pieces)
    if len(cut) > len(whole):
        # A line that was shown and then erased stays as an empty one; nothing else may differ.
        assert [row.text for row in cut[len(whole) :]] == [""]
    assert cut[: len(whole)] == whole


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=6).map("".join))
def test_cuts_after_every_character_change_nothing(text: str) -> None:
    terminal = Terminal()
    for character in text:
        terminal.feed(character)
    update = terminal.take()
    assert (list(update.rows) if update else []) == rows_of(text)


LINES = st.lists(st.one_of(FRAGMENTS, st.sampled_from(["\n", "a\nb\nc\n", "\r\n\r\n"])), max_size=20)


@settings(deadline=None)
@given(st.lists(LINES.map("".join), max_size=5), st.integers(1, 4))
def test_without_all_rows_the_newest_are_the_same_and_the_others_are_counted(
    pieces: list[str], newest: int
) -> None:
    every, last = Terminal(), Terminal(newest=newest)
    for piece in pieces:
        every.feed(piece)
        last.feed(piece)
        whole, part = every.take(), last.take()
        assert (whole is None) == (part is None)
        if whole and part:
            count = len(part.rows)
            assert count >= min(newest, len(whole.rows))
            assert count <= newest + 1
            assert part.first == whole.first + len(whole.rows) - count
            assert list(part.rows) == list(whole.rows)[-count:]
