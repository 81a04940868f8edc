"""Make the characters of a text visible that would change how it is shown. Pure.

What a job wrote may move the cursor of a terminal, turn the direction of text, or hide a part of it.
"""

_PLAIN = frozenset("\n\t")


def visible(text: str) -> str:
    """Return the text with escapes for what is not printed; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _PLAIN else _escape(each) for each in text)


def visible_line(text: str) -> str:
    """Return the text on one line, with its line breaks and tabs as escapes, too."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else _escape(each) for each in text)
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
