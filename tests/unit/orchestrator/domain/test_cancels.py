"""Which runs a cancel request ends."""

from typing import Any

import pytest

from solstice_orchestrator.domain.cancels import cancel_applies, change_key, describe_cancel
from tests.builders import job_cancel, job_request


def test_a_cancel_finds_the_requests_of_its_change_and_no_others() -> None:
    key = change_key(job_cancel(change_number=7))
    assert key is not None
    assert change_key(job_request(change_number=7)) == key
    others: list[dict[str, Any]] = [
        {"change_number": 8},
        {"change_number": 7, "repo_url": "https://forge.example/lantern/other.git"},
        {"change_number": 7, "source": "github"},
    ]
    assert all(change_key(job_request(**other)) not in {None, key} for other in others)


def test_a_push_belongs_to_no_change() -> None:
    assert change_key(job_request(change_number=None)) is None


@pytest.mark.parametrize(
    ("submitted_at", "applies"),
    [
        pytest.param(99.0, True, id="made before it"),
        pytest.param(100.0, False, id="made in the same moment"),
        pytest.param(101.0, False, id="made after it"),
    ],
)
def test_a_cancel_ends_what_was_asked_for_before_it(submitted_at: float, applies: bool) -> None:
    assert cancel_applies(100.0, submitted_at) is applies


@pytest.mark.parametrize(
    ("sender", "words"), [("ada-brook", "/cancel by ada-brook"), (None, "/cancel in a comment")]
)
def test_a_cancel_names_its_sender_if_it_is_known(sender: str | None, words: str) -> None:
    assert describe_cancel(job_cancel(sender=sender)) == words
