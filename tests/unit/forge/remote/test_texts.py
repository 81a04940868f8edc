"""Texts for forges: on one line, within limits, in characters that they support."""

import pytest

from solstice_forge.remote.texts import link, shortened


@pytest.mark.parametrize(
    ("text", "characters", "reported"),
    [
        ("four", 4, "four"),
        ("fives", 4, "fiv…"),
        ("one two", 5, "one…"),
        ("  a\n\tb\x00c  ", 9, "a b c"),
        ("a\ud800b", 9, "a b"),
        ("boat 🚣", 9, "boat 🚣"),
    ],
    ids=["fits", "cut", "cut before a space", "on one line", "half a character", "four bytes"],
)
def test_text_is_on_one_line_and_cut_with_an_ellipsis(text: str, characters: int, reported: str) -> None:
    assert shortened(text, characters) == reported


def test_character_of_four_bytes_is_replaced_where_a_forge_refuses_it() -> None:
    assert shortened("\uffff🚣b\U00010000", 9, astral=False).endswith("\ufffdb\ufffd")
    assert shortened("größe €", 9, astral=False) == "größe €"


@pytest.mark.parametrize(
    ("text", "most", "reported"),
    [("ööö", 6, "ööö"), ("öööö", 7, "öö…"), ("öööö", 6, "ö…"), ("ab cdef", 6, "ab…"), ("abcd", 4, "abcd")],
)
def test_text_is_cut_between_characters_where_bytes_are_counted(text: str, most: int, reported: str) -> None:
    assert shortened(text, 99, bytes_limit=most) == reported


def test_text_that_was_cut_for_its_characters_and_then_its_bytes_has_one_ellipsis() -> None:
    assert shortened("ö" * 9, 6, bytes_limit=9) == "ööö…"


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://h/".ljust(20, "x"), True),
        ("https://h/".ljust(21, "x"), False),
        ("http://h/", True),
        ("ftp://h/", False),
        ("//h/", False),
        (None, False),
    ],
)
def test_link_is_whole_or_absent(url: str | None, *, fits: bool) -> None:
    assert link(url, 20) == (url if fits else None)
