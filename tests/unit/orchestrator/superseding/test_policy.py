"""Which runs of a ref a newer run ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.trust import on_default_branch
from solstice_orchestrator.superseding.policy import (
    NewestPush,
    SupersedeRule,
    UnfinishedRun,
    supersede_key,
    superseded,
)
from solstice_orchestrator.superseding.seniority import Seniority
from tests.builders import job_request

OFF, WAITING, RUNNING = SupersedeRule.OFF, SupersedeRule.WAITING, SupersedeRule.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun(UnfinishedRun):
    """A run as the store knows it."""

    approves: bool = False


def sibling(number: int, **changes: object) -> StoredRun:
    values: dict[str, object] = {
        "run_id": f"run-{number}",
        "seniority": Seniority(requested_at=float(number), age=number),
        "state": RunState.RUNNING,
        "commit_sha": f"commit-{number}",
        **changes,
    }
    return StoredRun(**values)  # type: ignore[arg-type]  # the names are those of the fields


def ended_of(runs: Sequence[StoredRun], rule: SupersedeRule) -> Mapping[str, str]:
    """The ended runs when the newest is the last requested one."""
    own = [each for each in runs if not each.rerun]
    if not own:
        return {}
    last = max(own, key=lambda each: each.seniority)
    newest = NewestPush(
        run_id=last.run_id,
        seniority=last.seniority,
        commit_sha=last.commit_sha,
        approves=last.approves,
    )
    return superseded(runs, newest, rule)


@pytest.mark.parametrize(
    ("runs", "rule", "ended"),
    [
        pytest.param([sibling(1)], RUNNING, {}, id="alone"),
        pytest.param([sibling(1), sibling(2)], RUNNING, {"run-1": "run-2"}, id="a newer push"),
        pytest.param([sibling(2), sibling(1)], RUNNING, {"run-1": "run-2"}, id="planned in the other order"),
        pytest.param(
            [sibling(1), sibling(2), sibling(3)],
            RUNNING,
            {"run-1": "run-3", "run-2": "run-3"},
            id="the newest takes everybody's place",
        ),
        pytest.param([sibling(1), sibling(2)], OFF, {}, id="off"),
        pytest.param(
            [sibling(1, awaiting=True, commit_sha="x"), sibling(2, approves=True, commit_sha="x")],
            OFF,
            {"run-1": "run-2"},
            id="it waited for the word that the newer one is",
        ),
        pytest.param(
            [sibling(1, awaiting=True), sibling(2, approves=True)],
            OFF,
            {},
            id="the word is about another commit",
        ),
        pytest.param(
            [sibling(1, commit_sha="x"), sibling(2, approves=True, commit_sha="x")],
            OFF,
            {},
            id="it waited for nobody",
        ),
        pytest.param(
            [sibling(1, approves=True, commit_sha="x"), sibling(2, awaiting=True, commit_sha="x")],
            OFF,
            {},
            id="the word came before",
        ),
        pytest.param(
            [sibling(1), sibling(2, state=RunState.WAITING), sibling(3)],
            WAITING,
            {"run-2": "run-3"},
            id="only what has not started",
        ),
        pytest.param([sibling(1, on_default_branch=True), sibling(2)], RUNNING, {}, id="the default branch"),
        pytest.param(
            [sibling(1, on_default_branch=True, supersede=True), sibling(2)],
            RUNNING,
            {"run-1": "run-2"},
            id="the default branch, when its workflow asks for it",
        ),
        pytest.param([sibling(1, supersede=False), sibling(2)], RUNNING, {}, id="its workflow forbids it"),
        pytest.param(
            [sibling(1, supersede=True), sibling(2)], OFF, {}, id="the operator's off is above the workflow"
        ),
        pytest.param(
            [sibling(1), sibling(2, rerun=True)], RUNNING, {}, id="a run that somebody asked for again"
        ),
        pytest.param(
            [sibling(1), sibling(2, rerun=True), sibling(3)],
            RUNNING,
            {"run-1": "run-3", "run-2": "run-3"},
            id="and it makes way for what is pushed after it",
        ),
    ],
)
def test_who_is_ended_by_whom(runs: list[StoredRun], rule: SupersedeRule, ended: dict[str, str]) -> None:
    assert ended_of(runs, rule) == ended


def test_a_run_that_ended_long_ago_keeps_its_place() -> None:
    late = sibling(1)
    newest = NewestPush(run_id="run-9", seniority=sibling(9).seniority, commit_sha="commit-9")
    assert superseded([late], newest, RUNNING) == {"run-1": "run-9"}
    assert superseded([replace(late, on_default_branch=True)], newest, RUNNING) == {}


SIBLINGS = st.lists(
    st.builds(
        sibling,
        st.integers(1, 50),
        state=st.sampled_from([RunState.WAITING, RunState.RUNNING]),
        on_default_branch=st.booleans(),
        supersede=st.sampled_from([None, True, False]),
        rerun=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.run_id,
)


@given(SIBLINGS, st.sampled_from(SupersedeRule))
def test_one_is_always_left_and_it_is_the_one_that_took_the_place(
    runs: list[StoredRun], rule: SupersedeRule
) -> None:
    ended = ended_of(runs, rule)
    left = [each for each in runs if each.run_id not in ended]
    assert left or not runs
    assert set(ended.values()) <= {each.run_id for each in left if not each.rerun}
    assert len(set(ended.values())) <= 1


@given(SIBLINGS, st.sampled_from(SupersedeRule))
def test_repeating_it_ends_no_other(runs: list[StoredRun], rule: SupersedeRule) -> None:
    ended = ended_of(runs, rule)
    assert ended_of([each for each in runs if each.run_id not in ended], rule) == {}


PUSH = {"ref": "refs/heads/spring", "event": "push"}
CHANGE = {"ref": "refs/pull/7/head", "event": "change_request", "change_number": 7}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"commit_sha": "a" * 40, "sender": "cleo", "source_name": "second-hook"}, True),
        ({"ref": "refs/heads/autumn"}, False),
        ({"repo_url": "https://forge.example/other.git"}, False),
        ({"source": "gitea"}, False),
        ({"workflow_path": "nightly.kdl"}, False),
        ({"workflow_job_id": "lint"}, False),
        (CHANGE, False),
    ],
    ids=["the same", "another commit", "branch", "repository", "forge", "workflow", "job", "change request"],
)
def test_runs_of_one_ref(changes: dict[str, object], same: bool) -> None:
    assert (supersede_key(job_request(**PUSH)) == supersede_key(job_request(**{**PUSH, **changes}))) is same


@pytest.mark.parametrize(
    "changes",
    [
        {"ref": "refs/tags/v1"},
        {"event": "manual", "source": "manual"},
        {"event": "rerun", "change_number": 7},
        {"event": None},
        {"ref": None},
    ],
    ids=["a tag", "by hand", "a check run again", "no event", "no ref"],
)
def test_some_requests_have_no_ref(changes: dict[str, object]) -> None:
    assert supersede_key(job_request(**{**PUSH, **changes})) is None


def test_a_change_request_is_followed_by_its_number() -> None:
    assert supersede_key(job_request(**CHANGE)) == supersede_key(
        job_request(**{**CHANGE, "ref": "refs/heads/anything"})
    )
    assert supersede_key(job_request(**CHANGE)) != supersede_key(
        job_request(**{**CHANGE, "change_number": 8})
    )


@pytest.mark.parametrize(
    ("changes", "default"),
    [
        ({"ref": "refs/heads/main"}, True),
        ({"ref": "refs/heads/trunk"}, True),
        ({"ref": "refs/heads/spring"}, False),
        ({"ref": "refs/heads/spring", "default_branch": "spring"}, True),
        ({"ref": "refs/heads/main", "default_branch": "spring"}, False),
        ({"ref": "refs/tags/main"}, False),
        ({**CHANGE, "ref": "refs/heads/main"}, False),
    ],
    ids=["main", "trunk", "another", "named", "not the named one", "tag", "change request"],
)
def test_the_default_branch_is_the_named_one_else_a_usual_one(
    changes: dict[str, object], default: bool
) -> None:
    assert on_default_branch(job_request(**changes)) is default
