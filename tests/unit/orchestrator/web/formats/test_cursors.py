"""Cursors lead back to their place, and are valid only there."""

from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.web.formats.cursors import cursor_of, position_of, text_cursor_of, text_position_of

ID = "0190a5b2-0000-7000-8000-00000000002a"
FILTERS = {"repository": "lantern/harbour", "state": None}

ids = st.uuids().map(str)
filters = st.dictionaries(st.sampled_from(("repository", "ref", "state")), st.none() | st.text(max_size=9))


@given(ids, filters)
def test_a_cursor_leads_back_to_its_place(last: str, list_filters: Mapping[str, object]) -> None:
    assert position_of(cursor_of(last, "runs", list_filters), "runs", list_filters) == last


@given(ids, filters, filters)
def test_a_cursor_is_good_for_its_own_filters_alone(
    last: str, list_filters: Mapping[str, object], others: Mapping[str, object]
) -> None:
    def parameters(given: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in given.items() if value is not None}

    found = position_of(cursor_of(last, "runs", list_filters), "runs", others)
    assert found == (last if parameters(list_filters) == parameters(others) else None)
    assert position_of(cursor_of(last, "runs", list_filters), "jobs", list_filters) is None


@given(st.text(st.characters(exclude_categories=["Cs"])), filters)
def test_cursor_of_text_leads_back_to_its_place(last: str, list_filters: Mapping[str, object]) -> None:
    cursor = text_cursor_of(last, "dead letters", list_filters)
    assert text_position_of(cursor, "dead letters", list_filters) == last
    assert text_position_of(cursor, "runs", list_filters) is None


@given(ids)
def test_cursor_of_an_id_is_none_of_text_that_cannot_be_read(last: str) -> None:
    place = UUID(last).bytes
    try:
        text = place.decode()
    except UnicodeDecodeError:
        text = None
    assert text_position_of(cursor_of(last, "runs", FILTERS), "runs", FILTERS) == text
    assert position_of(text_cursor_of("x" * 15, "runs", FILTERS), "runs", FILTERS) is None


@given(st.text(max_size=60))
def test_what_is_no_cursor_leads_nowhere(text: str) -> None:
    assert position_of(text, "runs", FILTERS) is None


@given(st.integers(0, 31), st.sampled_from("AZaz09-_"))
def test_a_changed_cursor_leads_nowhere(place: int, character: str) -> None:
    cursor = cursor_of(ID, "runs", FILTERS)
    changed = cursor[:place] + character + cursor[place + 1 :]
    assert position_of(changed, "runs", FILTERS) == (ID if changed == cursor else None)


def test_a_cursor_is_opaque() -> None:
    cursor = cursor_of(ID, "runs", FILTERS)
    assert len(cursor) == 32
    assert str(UUID(ID).hex) not in cursor
    assert "lantern" not in cursor
