"""Every reason that our code gives a dead letter is explained."""

import ast
from collections.abc import Iterator

import pytest

from solstice_common.broker.dead_letters.reasons import ADVICE, OTHER, advice
from solstice_common.signing.jws import SignatureReason
from solstice_forge.statuses.call_endings import Undeliverable
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE
from tests.architecture_tables import PACKAGES

REFUSALS = {"Refuse", "InvalidMessage", Undeliverable.__name__}


def written_reasons() -> Iterator[str]:
    """The literal reasons of every refusal in the code."""
    for root in PACKAGES.values():
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in REFUSALS
                ):
                    given = [each.value for each in node.keywords if each.arg == "reason"] or node.args[:1]
                    yield from (
                        each.value
                        for each in given
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    )


@pytest.mark.parametrize(
    "reason", sorted({*written_reasons(), *SignatureReason, *(each.value for each in INFRASTRUCTURE)})
)
def test_a_reason_of_ours_is_explained(reason: str) -> None:
    assert reason in ADVICE


def test_the_search_finds_reasons() -> None:
    assert {"not_json", "internal_error", "no_repository", "too_many_deliveries"} <= {*written_reasons()}


@pytest.mark.parametrize("reason", ["", "<b>", "news of tomorrow"])
def test_a_reason_of_another_program_is_no_error(reason: str) -> None:
    assert advice(reason) is OTHER
    assert OTHER.meaning
    assert OTHER.remedy
