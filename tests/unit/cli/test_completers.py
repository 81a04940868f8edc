"""Ids are completed from their ends, and from long beginnings."""

import pytest

from solstice_cli.completers import _ids

FOUND = [
    ("0193e0a0-0000-7000-8000-0000000000a1", "run"),
    ("0193e0a0-0000-7000-8000-00000193e0ff", "job"),
]


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("", ["000000a1", "0193e0ff"]),
        ("00", ["000000a1"]),
        ("019", ["0193e0ff"]),
        ("0193", [FOUND[0][0], "0193e0ff", FOUND[1][0]]),
        ("0193e0a0-", [FOUND[0][0], FOUND[1][0]]),
        ("f", []),
    ],
)
def test_an_id_is_offered_by_its_end_and_to_a_long_beginning_whole(typed: str, values: list[str]) -> None:
    assert [value for value, _ in _ids(typed, FOUND)] == values
