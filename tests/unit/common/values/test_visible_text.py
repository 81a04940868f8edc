"""What would change how a text is shown stands there as an escape."""

import pytest

from solstice_common.values.visible_text import visible, visible_line


@pytest.mark.parametrize(
    ("text", "shown", "on_a_line"),
    [
        ("plain ä 😀", "plain ä 😀", "plain ä 😀"),
        ("a\n\tb", "a\n\tb", "a\\n\\tb"),
        ("\x1b[31m\x07\r", "\\x1b[31m\\x07\\r", "\\x1b[31m\\x07\\r"),
        ("\u202eabc\u200b\ufeff", "\\u202eabc\\u200b\\ufeff", "\\u202eabc\\u200b\\ufeff"),
        ("\ud800\0", "\\ud800\\x00", "\\ud800\\x00"),
    ],
)
def test_hidden_characters_are_escapes(text: str, shown: str, on_a_line: str) -> None:
    assert (visible(text), visible_line(text)) == (shown, on_a_line)
