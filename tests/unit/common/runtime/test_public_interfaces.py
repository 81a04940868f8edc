"""The choice of libraries that are used by their public interface alone."""

from collections.abc import Iterator

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.runtime import public_interfaces
from solstice_common.runtime.public_interfaces import LIBRARIES, VARIABLE, public_only


@pytest.fixture(autouse=True)
def unknown() -> Iterator[None]:
    """Clear the cached environment, before and afterwards."""
    public_interfaces._chosen.cache_clear()
    yield
    public_interfaces._chosen.cache_clear()


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ("", set()),
        ("asyncpg", {"asyncpg"}),
        ("uvicorn, asyncpg", {"asyncpg", "uvicorn"}),
        ("all", set(LIBRARIES)),
    ],
)
def test_the_named_libraries_are_chosen(
    monkeypatch: pytest.MonkeyPatch, named: str, chosen: set[str]
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    assert {library for library in LIBRARIES if public_only(library)} == chosen


def test_a_library_that_has_no_such_choice_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "asyncpg,jinja2")
    with pytest.raises(
        ConfigurationError, match="jinja2 is not known here: use asyncpg, nats, uvicorn or all"
    ):
        public_only("uvicorn")
