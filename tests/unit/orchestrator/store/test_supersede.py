"""Which runs of a branch have to be looked at when another one joins them."""

import pytest

from solstice_orchestrator.store.decisions.supersede import runs_to_load
from solstice_orchestrator.store.records.changes import RefRun
from solstice_orchestrator.superseding.policy import SupersedeRule
from tests.builders import job_request


def related_run(*said: bool | None) -> list[RefRun]:
    return [RefRun(str(number), b"branch", each, rerun=False) for number, each in enumerate(said)]


@pytest.mark.parametrize(
    ("ref", "asked", "known", "rule", "expected"),
    [
        ("refs/heads/topic", None, related_run(None, False), SupersedeRule.RUNNING, 2),
        ("refs/heads/topic", None, related_run(None, False), SupersedeRule.OFF, 0),
        ("refs/heads/main", None, related_run(*[None] * 1000), SupersedeRule.RUNNING, 0),
        ("refs/heads/main", True, related_run(None, None), SupersedeRule.WAITING, 2),
        ("refs/heads/main", None, related_run(None, True), SupersedeRule.WAITING, 2),
        ("refs/heads/main", True, related_run(True), SupersedeRule.OFF, 0),
    ],
    ids=["branch", "off", "default branch", "it asks", "another asked", "asked in vain"],
)
def test_they_are_looked_at_where_somebody_may_be_ended(
    ref: str, asked: bool | None, known: list[RefRun], rule: SupersedeRule, expected: int
) -> None:
    assert len(runs_to_load(job_request(ref=ref), known, rule, asked=asked)) == expected
