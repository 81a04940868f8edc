"""What the outside can see is declared once, and the pages say the same."""

import re
from pathlib import Path

import pytest

from tests.reference import PAGES, rendered


@pytest.mark.parametrize("page", list(PAGES), ids=lambda page: page.name)
def test_page_says_what_the_code_declares(page: Path) -> None:
    assert page.read_text("utf-8") == rendered(page), "run: ./just docs"


@pytest.mark.parametrize("page", list(PAGES), ids=lambda page: page.name)
def test_page_shows_no_names_of_python(page: Path) -> None:
    assert not re.findall(r"<(?:enum|class|function|[a-z_.]+ object) ?[^>]*>|typing\.\w+", rendered(page))
