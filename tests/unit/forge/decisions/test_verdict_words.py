"""The words of terminal and page about a stored delivery."""

import pytest
from msgspec.structs import replace

from solstice_forge.decisions.verdict_words import decision_style, fate, run_address, sentence
from solstice_forge.inbox.keep_results import DUPLICATE_CONTENT, DUPLICATE_DELIVERY
from solstice_forge.inbox.log import DeliveryEntry
from solstice_forge.inbox.protocol import Decision

ACCEPTED = DeliveryEntry(
    row_id=7,
    source_name="harbour",
    delivery_id="d-1",
    event_name="push",
    received_at=0.0,
    repo_full_name="tide-club/almanac",
    decision=Decision.ACCEPTED,
    reason="push",
    detail="",
    request_ids=("a/1", "b"),
    repeats=None,
    published=True,
    attempts=1,
    last_failure=None,
)
IGNORED = replace(
    ACCEPTED, decision=Decision.IGNORED, reason="ping", request_ids=(), published=None, attempts=0
)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        pytest.param(ACCEPTED, "with the broker, for the orchestrators", id="published"),
        pytest.param(
            replace(ACCEPTED, published=False, attempts=0),
            "waits for the broker (not sent yet)",
            id="not sent",
        ),
        pytest.param(
            replace(ACCEPTED, published=False, attempts=3, last_failure="no route"),
            "waits for the broker (tried 3 times: no route)",
            id="tried",
        ),
        pytest.param(
            replace(ACCEPTED, published=None),
            "waits for the forge to answer what it lacks",
            id="not asked yet",
        ),
        pytest.param(
            replace(ACCEPTED, published=None, last_failure="503"),
            "waits for the forge to answer what it lacks: 503",
            id="asked in vain",
        ),
        pytest.param(IGNORED, "", id="ignored"),
        pytest.param(replace(ACCEPTED, decision=Decision.DUPLICATE), "", id="duplicate"),
    ],
)
def test_fate_says_where_the_request_is(entry: DeliveryEntry, words: str) -> None:
    assert fate(entry) == words


def test_only_what_is_not_with_the_broker_yet_stands_out() -> None:
    assert decision_style(ACCEPTED) == "green"
    assert decision_style(replace(ACCEPTED, published=False)) == "yellow"
    assert decision_style(replace(ACCEPTED, published=None)) == "yellow"
    assert decision_style(IGNORED) == "dim"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (DUPLICATE_DELIVERY, "The forge sent this delivery before, under the same id."),
        (DUPLICATE_CONTENT, "The same event came before, by another hook or under another id."),
        ("a_new_reason", "a new reason"),
    ],
)
def test_reason_is_told_in_a_sentence_or_in_its_own_words(reason: str, words: str) -> None:
    assert sentence(replace(ACCEPTED, reason=reason)) == words


@pytest.mark.parametrize("public_url", ["https://ci.example", "https://ci.example/"])
def test_run_is_linked_by_its_first_request(public_url: str) -> None:
    assert run_address(public_url, ACCEPTED) == "https://ci.example/requests/a%2F1"


def test_what_has_no_run_or_no_known_page_has_no_link() -> None:
    assert run_address("", ACCEPTED) is None
    assert run_address("https://ci.example", IGNORED) is None
    assert run_address("https://ci.example", replace(ACCEPTED, reason="cancel")) is None


def test_reason_without_a_sentence_is_shown_as_words() -> None:
    assert sentence(IGNORED) == "The forge asked whether the address works. It does."
    assert sentence(replace(IGNORED, reason="a_new_one")) == "a new one"
