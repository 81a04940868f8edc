"""Output of strangers for a terminal: colours stay, control sequences go."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.cli.terminal import MAX_UNFINISHED, HarmlessText


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[1;32mgreen\x1b[0m", "\x1b[1;32mgreen\x1b[0m"),
        ("\x1b[38:2::1:2:3mrgb\x1b[m", "\x1b[38:2::1:2:3mrgb\x1b[m"),
        ("a\x1b[2Jb\x1b[1;1Hc", "abc"),
        ("\x1b]0;another title\x07text", "text"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\text", "text"),
        ("\x1bctext", "text"),
        ("bell\x07 back\x08 null\x00", "bell back null"),
        ("\x9b2Jc1", "2Jc1"),
        ("lone \x1b\n", "lone \n"),
        ("grüße ✓ 漢", "grüße ✓ 漢"),
        ("owner/\u202egpj\u202c \u2066a\u2069", "owner/gpj a"),
        ("\U0001f468\u200d\U0001f4bb", "\U0001f468\u200d\U0001f4bb"),
    ],
    ids=[
        *("plain", "colour", "rgb", "cursor", "title", "link", "device control", "reset", "controls", "c1"),
        *("lone escape", "not ascii", "turned around", "joined emoji"),
    ],
)
def test_colours_stay_and_commands_go(text: str, shown: str) -> None:
    assert HarmlessText().feed(text) == shown


pieces = st.lists(
    st.text(st.sampled_from("\x1b\x1b\x1b[]P\\;:0123m?JHabc \x07\x9b\n\r"), max_size=12), max_size=12
)


@given(pieces)
def test_nothing_but_colours_steers_the_terminal_however_it_is_cut(cut: list[str]) -> None:
    harmless = HarmlessText()
    shown = "".join(harmless.feed(piece) for piece in cut)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", re.sub(r"\x1b\[[0-9;:]*m", "", shown))


@given(pieces)
def test_cutting_changes_nothing(cut: list[str]) -> None:
    whole, parts = HarmlessText(), HarmlessText()
    assert whole.feed("".join(cut)) == "".join(parts.feed(piece) for piece in cut)


def test_wait_for_the_rest_of_a_sequence_has_an_end() -> None:
    harmless = HarmlessText()
    shown = "".join(
        harmless.feed(piece) for piece in ["\x1b]0;", *["x" * 100] * (MAX_UNFINISHED // 100 + 2), "\nafter\n"]
    )
    assert "after" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("start", ["\x1b", "\x1b[1;3", "\x1b]0;tit", "\x1b]0;title\x1b", "\x1b(", "\x1b[ "])
def test_beginning_of_a_sequence_is_held_back_until_the_rest_comes(start: str) -> None:
    harmless = HarmlessText()
    assert harmless.feed("before" + start) == "before"


def test_beginning_that_is_held_back_is_as_long_as_any_honest_one() -> None:
    longest = HarmlessText()
    assert longest.feed("a\x1b]" + "x" * (MAX_UNFINISHED - 2)) == "a"
    assert longest.feed("\x07b") == "b"
    too_long = HarmlessText()
    assert too_long.feed("a\x1b]" + "x" * (MAX_UNFINISHED - 1)) != "a"
