"""The words and links of the pages of dead letters."""

from datetime import UTC, datetime

import pytest

from solstice_common.broker import DeadLetter
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of
from solstice_orchestrator.web.pages import dead_letter_wording as wording


def found(number: int, refused_at: str | None) -> DeadLetterFacts:
    headers = {} if refused_at is None else {"x-solstice-refused-at": refused_at}
    return facts_of(DeadLetter(queue="q", body=b"", headers=headers, message_id=str(number)))


def test_the_list_stands_in_the_order_of_death_and_each_has_a_place_of_its_own() -> None:
    times = [
        "0001-01-01T00:00:00.000Z",
        "2026-03-01T12:00:00.000Z",
        "2026-03-01T12:00:00.000Z",
        "9999-12-31T00:00:00.000Z",
    ]
    rows = [found(0, None), *(found(number, at) for number, at in enumerate(times, 1))]
    places = [wording.place(each) for each in rows]
    assert [each[:24] for each in sorted(places)] == [each[:24] for each in places]
    assert len(set(places)) == len(places)


def test_a_moment_is_in_seconds() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert wording.moment(found(1, "2026-03-01T12:00:00.000Z")) == at.timestamp()
    assert wording.moment(found(1, None)) is None


@pytest.mark.parametrize(
    ("filters", "path"),
    [
        ({}, "/x"),
        ({"reason": ""}, "/x"),
        ({"reason": "a&b=c#d", "queue": "q"}, "/x?reason=a%26b%3Dc%23d&queue=q"),
        ({"reason": "\ud800"}, "/x?reason=%3F"),
    ],
)
def test_a_link_carries_the_filters(filters: dict[str, str], path: str) -> None:
    assert wording.link("/x", filters) == path


def test_long_and_several_lines_are_shortened() -> None:
    assert wording.shortened("one\ntwo") == "one"
    assert wording.shortened("x" * 999) == "x" * wording.LINE + "…"
    assert [wording.number(each) for each in (1, 2)] == ["1 dead letter", "2 dead letters"]
