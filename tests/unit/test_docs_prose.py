"""The pages of the documentation use common words and short sentences."""

from typing import Final

import pytest

from tests.docs_pages import PAGES
from tests.docs_prose import paragraphs, sentences, words
from tests.unit.test_glossary import UNPRIVILEGED_USER, UNUSUAL

LONGEST_SENTENCE_WORDS: Final = 40
NOT_READ_YET: Final = frozenset(
    {
        "CHANGELOG.md",
        "docs/api.md",
        "docs/configuration.md",
        "docs/development.md",
        "docs/life-of-a-job.md",
        "docs/messages.md",
        "docs/reference/log-events.md",
        "docs/reference/modules.md",
        "docs/simulate.md",
        "docs/webhooks.md",
        "schemas/README.md",
    }
)
"""Pages that still have to be written in short sentences."""
READ: Final = tuple(page for page in PAGES if page not in NOT_READ_YET)


@pytest.mark.parametrize("page", READ)
def test_pages_use_common_words(page: str) -> None:
    found = [
        f"{match[0]}: {text}"
        for text in paragraphs(page)
        # A message of PostgreSQL.
        for match in UNUSUAL.finditer(UNPRIVILEGED_USER.sub("", text.replace("somebody has changed", "")))
    ]
    assert found == []


@pytest.mark.parametrize("page", READ)
def test_sentences_of_pages_are_short(page: str) -> None:
    assert [each for each in sentences(page) if words(each) > LONGEST_SENTENCE_WORDS] == []


def test_a_sentence_ends_at_its_full_stop_and_code_is_one_word() -> None:
    assert words("The relay publishes `SELECT a, b FROM c` in order.") == 6

    page = "docs/decisions/README.md"
    assert len(list(sentences(page))) > len(list(paragraphs(page)))
