"""The pages of the documentation use common words and short sentences."""

from typing import Final

import pytest

from tests.docs_pages import PAGES
from tests.docs_prose import paragraphs, sentences, words
from tests.unit.test_glossary import UNPRIVILEGED_USER, UNUSUAL

LONGEST_SENTENCE_WORDS: Final = 40
LONG_SENTENCES_LEFT: Final = frozenset({"CHANGELOG.md", "docs/reference/modules.md"})
"""Pages with longer sentences: old entries, and a generated list of modules."""


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_common_words(page: str) -> None:
    found = [
        f"{match[0]}: {text}"
        for text in paragraphs(page)
        for match in UNUSUAL.finditer(UNPRIVILEGED_USER.sub("", text))
    ]
    assert found == []


@pytest.mark.parametrize("page", sorted({*PAGES} - LONG_SENTENCES_LEFT))
def test_sentences_of_pages_are_short(page: str) -> None:
    assert [each for each in sentences(page) if words(each) > LONGEST_SENTENCE_WORDS] == []


def test_a_sentence_ends_at_its_full_stop_and_code_is_one_word() -> None:
    assert words("The relay publishes `SELECT a, b FROM c` in order.") == 6
    page = "docs/decisions/README.md"
    assert len(list(sentences(page))) > len(list(paragraphs(page)))
