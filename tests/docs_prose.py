"""Splits the pages of the documentation into sentences, for the tests of their words."""

import re
from collections.abc import Iterator
from typing import Final

from tests.docs_pages import prose

_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r" *(?:\*|-|\d+\.) ")
_END: Final = re.compile(r"(?<=[.!?])[\"*)]*\s+")
_ABBREVIATIONS: Final = re.compile(r"\b(e\.g|i\.e|etc|vs|approx)\.")


def paragraphs(page: str) -> Iterator[str]:
    """Each heading, paragraph, list item and table cell of a page, on one line each."""
    lines: list[str] = []
    for line in [*prose(page).splitlines(), ""]:
        apart = line.startswith(("#", "|", "<!--"))
        if (not line.strip() or apart or _ITEM.match(line)) and lines:
            yield _plain(" ".join(lines))
            lines = []
        if line.startswith("|"):
            yield from (_plain(cell) for cell in line.strip("|").split("|") if cell.strip(" -"))
        elif apart:
            yield _plain(line.lstrip("# "))
        elif line.strip():
            lines.append(_ITEM.sub("", line, count=1).strip() if not lines else line.strip())


def sentences(page: str) -> Iterator[str]:
    """Each sentence of a page's paragraphs and list items."""
    for paragraph in paragraphs(page):
        yield from _END.split(_ABBREVIATIONS.sub(r"\1", paragraph))


def titles(page: str) -> list[str]:
    """The headings of a page."""
    return [_plain(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]


def words(sentence: str) -> int:
    """How many words a reader reads; what is quoted as code is one word."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", sentence)))


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).strip()
