"""Which runs of a branch have to be looked at when another one joins them."""

import pytest

from solstice_orchestrator.store.decisions.supersede import rivals
from solstice_orchestrator.store.records.changes import Kin
from solstice_orchestrator.superseding.policy import Supersede
from tests.builders import job_request


def kin(*said: bool | None) -> list[Kin]:
    return [Kin(str(number), b"branch", each, rerun=False) for number, each in enumerate(said)]


@pytest.mark.parametrize(
    ("ref", "asked", "known", "rule", "expected"),
    [
        ("refs/heads/topic", None, kin(None, False), Supersede.RUNNING, 2),
        ("refs/heads/topic", None, kin(None, False), Supersede.OFF, 0),
        ("refs/heads/main", None, kin(*[None] * 1000), Supersede.RUNNING, 0),
        ("refs/heads/main", True, kin(None, None), Supersede.WAITING, 2),
        ("refs/heads/main", None, kin(None, True), Supersede.WAITING, 2),
        ("refs/heads/main", True, kin(True), Supersede.OFF, 0),
    ],
    ids=["branch", "off", "default branch", "it asks", "another asked", "asked in vain"],
)
def test_they_are_looked_at_where_somebody_may_be_ended(
    ref: str, asked: bool | None, known: list[Kin], rule: Supersede, expected: int
) -> None:
    assert len(rivals(job_request(ref=ref), known, rule, asked=asked)) == expected
