"""Every reason that our code gives a dead letter is explained."""

from collections.abc import Iterator
from typing import get_args

import pytest

from solstice_common.broker.dead_letters.reasons import ADVICE, OTHER, advice
from solstice_common.broker.delivery import RefuseReason
from solstice_common.signing.jws import SignatureReason
from solstice_forge.statuses.call_endings import UndeliverableReason
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE


def words_of(words: object) -> Iterator[str]:
    """The words of a Literal, or of a union of them."""
    for each in get_args(words):
        if isinstance(each, str):
            yield each
        else:
            yield from words_of(each)


REASONS = {
    *words_of(RefuseReason),
    *words_of(UndeliverableReason),
    *SignatureReason,
    *(each.value for each in INFRASTRUCTURE),
}


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_reason_of_ours_is_explained(reason: str) -> None:
    assert reason in ADVICE


def test_the_lists_of_refusals_and_of_undeliverable_statuses_are_read() -> None:
    assert {"not_json", "internal_error", "no_repository", "forbidden"} <= REASONS


@pytest.mark.parametrize("reason", ["", "<b>", "news of tomorrow"])
def test_a_reason_of_another_program_is_no_error(reason: str) -> None:
    assert advice(reason) is OTHER
    assert OTHER.meaning
    assert OTHER.remedy
