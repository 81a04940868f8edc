"""Slots per label, and the limit of a worker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.capacity import capacity, free, parse_slots

LABELS = ("linux", "illumos")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("linux=4", {"linux": 4}),
        ("linux=4,illumos=1", {"linux": 4, "illumos": 1}),
        (" linux=4 , illumos=0 ", {"linux": 4, "illumos": 0}),
        ("a.b-c_D9=12", {"a.b-c_D9": 12}),
    ],
)
def test_slots_per_label_are_read(text: str, slots: dict[str, int]) -> None:
    assert parse_slots(text) == slots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not LABEL=SLOTS"),
        ("linux", "'linux' is not LABEL=SLOTS"),
        ("linux=", "'linux=' is not"),
        ("linux=-1", "'linux=-1' is not"),
        ("linux=٣", "is not LABEL=SLOTS"),
        ("linux=1,", "'' is not LABEL=SLOTS"),
        ("=3", "'=3' is not"),
        ("linux=1,linux=2", "'linux' stands there twice"),
    ],
)
def test_a_wrong_map_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_slots(text)


@given(st.text(alphabet="linux=4, ", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        slots = parse_slots(text)
    except ValueError:
        return
    assert all(count >= 0 for count in slots.values())


def test_without_a_limit_all_slots_count_and_a_limit_never_adds_any() -> None:
    slots = {"linux": 4, "illumos": 1}
    assert [capacity(slots, limit).limit for limit in (0, 2, 5, 99)] == [5, 2, 5, 5]


@given(
    st.dictionaries(st.sampled_from(LABELS), st.integers(0, 5)),
    st.integers(0, 9),
    st.lists(st.sampled_from((*LABELS, "gone")), max_size=12),
)
def test_what_is_held_is_not_free(slots: dict[str, int], limit: int, used: list[str]) -> None:
    whole = capacity(slots, limit)
    left = free(whole, used)
    assert left.total == max(0, whole.limit - len(used))
    assert left.slots == {label: max(0, count - used.count(label)) for label, count in slots.items()}
