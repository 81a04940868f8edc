"""Numbers with their nouns, singular and plural."""

import pytest

from solstice_common.values.quantities import quantity


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 deliveries"), (1, "1 delivery"), (2, "2 deliveries"), (21, "21 deliveries")]
)
def test_only_one_is_singular(count: int, words: str) -> None:
    assert quantity(count, "delivery", "deliveries") == words


def test_most_nouns_take_an_s() -> None:
    assert [quantity(count, "missed head") for count in (1, 3)] == ["1 missed head", "3 missed heads"]
