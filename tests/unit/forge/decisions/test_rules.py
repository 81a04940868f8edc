"""The first rule that matches repository and event decides; unknown facts refuse nothing."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_forge.decisions.rules import Forks, Rule, RuleEvent, RuleSubject, Ruling, decide, is_for
from solstice_forge.forges.events import Ignored, IgnoreReason

PUSH = RuleSubject(event=RuleEvent.PUSH, repository="river/otter", branch="main")
CHANGE = RuleSubject(
    event=RuleEvent.CHANGE_REQUEST, repository="river/otter", branch="main", of_change_request=True
)
FORK = RuleSubject(
    event=RuleEvent.CHANGE_REQUEST,
    repository="river/otter",
    branch="main",
    of_change_request=True,
    stranger=True,
)
OK = RuleSubject(
    event=RuleEvent.COMMENT,
    repository="river/otter",
    branch="main",
    of_change_request=True,
    stranger=True,
    approves=True,
)
RETEST = RuleSubject(event=RuleEvent.COMMENT, repository="river/otter", of_change_request=True, stranger=True)
RERUN = RuleSubject(event=RuleEvent.RERUN, repository="river/otter", of_change_request=True, stranger=True)


def rule(name: str = "the rule", **conditions: Any) -> Rule:
    return Rule(name=name, **conditions)


def decided(subject: RuleSubject, *rules: Rule, changed: Collection[str] | None = None) -> str:
    """One word for the decision."""
    match decide(subject, rules, lambda: changed):
        case Ignored(reason=reason):
            return reason.value
        case Ruling(needs_approval=True):
            return "waits"
        case Ruling(approves=True):
            return "approved"
        case Ruling():
            return "built"


CONDITIONS = {
    "no rules": (PUSH, (), "built"),
    "repository": (PUSH, (rule(repositories=("river/*",)),), "built"),
    "another repository": (PUSH, (rule(repositories=("lake/*",)),), "no_rule"),
    "event": (PUSH, (rule(events=frozenset({RuleEvent.PUSH})),), "built"),
    "another event": (PUSH, (rule(events=frozenset({RuleEvent.TAG})),), "no_rule"),
    "branch": (PUSH, (rule(branches=("release/**", "main")),), "built"),
    "another branch": (PUSH, (rule(branches=("release/**",)),), "branch_not_built"),
    "base branch": (CHANGE, (rule(branches=("release/**",)),), "branch_not_built"),
    "unknown branch": (RETEST, (rule(branches=("main",), forks=Forks.ALL),), "built"),
    "first rule decides": (PUSH, (rule(branches=("x",)), rule()), "branch_not_built"),
    "later rule for what the first is not for": (PUSH, (rule(repositories=("x",)), rule()), "built"),
}


@pytest.mark.parametrize(("subject", "rules", "word"), CONDITIONS.values(), ids=CONDITIONS)
def test_condition(subject: RuleSubject, rules: tuple[Rule, ...], word: str) -> None:
    assert decided(subject, *rules) == word


PATHS = {
    "one of several": ({"src/a.c", "README.md"}, "built"),
    "none": ({"README.md"}, "paths_not_built"),
    "nothing changed": (set[str](), "paths_not_built"),
    "the forge does not tell": (None, "built"),
}


@pytest.mark.parametrize(("changed", "word"), PATHS.values(), ids=PATHS)
def test_paths(changed: set[str] | None, word: str) -> None:
    assert decided(PUSH, rule(paths=("src/**",)), changed=changed) == word


def test_paths_are_read_only_when_a_rule_looks_at_them() -> None:
    def never() -> Collection[str]:
        raise AssertionError

    assert isinstance(decide(PUSH, (rule(),), never), Ruling)
    assert isinstance(decide(CHANGE, (rule(paths=("src/**",)),), never), Ruling)


FORKS = {
    Forks.NONE: {"change": "fork_not_built", "ok": "fork_not_built", "rerun": "fork_not_built"},
    Forks.TRUSTED: {"change": "fork_not_built", "ok": "approved", "rerun": "built"},
    Forks.APPROVE: {"change": "waits", "ok": "approved", "rerun": "built"},
    Forks.ALL: {"change": "built", "ok": "approved", "rerun": "built"},
}


@pytest.mark.parametrize("forks", Forks)
def test_fork_policy(forks: Forks) -> None:
    policy = rule(forks=forks)
    assert {
        "change": decided(FORK, policy),
        "ok": decided(OK, policy),
        "rerun": decided(RERUN, policy),
    } == FORKS[forks]
    assert decided(RETEST, policy) == FORKS[forks]["change"]
    assert decided(CHANGE, policy) == "built"
    assert decided(PUSH, policy) == "built"


def test_forks_wait_where_there_are_no_rules() -> None:
    assert decided(FORK) == "waits"


@pytest.mark.parametrize("subject", [CHANGE, FORK, OK, RETEST, RERUN], ids=lambda one: one.event.value)
def test_change_request_never_has_a_priority(subject: RuleSubject) -> None:
    ruling = decide(subject, (rule(priority=Priority.CRITICAL, forks=Forks.ALL),), lambda: None)
    assert isinstance(ruling, Ruling)
    assert ruling.priority is None


def test_rule_says_priority_and_label() -> None:
    ruling = decide(PUSH, (rule(priority=Priority.HIGH, runs_on="illumos"),), lambda: None)
    assert ruling == Ruling(rule="the rule", priority=Priority.HIGH, runs_on="illumos")


def test_refusal_names_its_rule() -> None:
    ruling = decide(PUSH, (rule("rivers", branches=("x",)),), lambda: None)
    assert isinstance(ruling, Ignored)
    assert ruling.detail == "rivers: not for the branch main"


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("push tag change_request comment rerun release dispatch merge_group", RuleEvent),
        ("none approve trusted all", Forks),
    ],
    ids=["events", "forks"],
)
def test_words_that_files_of_rules_hold_are_understood_forever(words: str, known: type[StrEnum]) -> None:
    assert [known(word).name.lower() for word in words.split()] == words.split()


NAMES = st.sampled_from(["main", "release/1", "river/otter", "lake/heron"])
GLOBS = st.lists(st.sampled_from(["**", "river/*", "main", "release/**"]), min_size=1).map(tuple)
RULES = st.lists(
    st.builds(
        Rule,
        name=st.just("r"),
        repositories=GLOBS,
        events=st.frozensets(st.sampled_from(RuleEvent), min_size=1),
        branches=GLOBS,
        paths=GLOBS,
        priority=st.none() | st.sampled_from(Priority),
        forks=st.sampled_from(Forks),
    ),
    max_size=3,
)
SUBJECTS = st.builds(
    RuleSubject,
    event=st.sampled_from(RuleEvent),
    repository=NAMES,
    branch=st.none() | NAMES,
    of_change_request=st.booleans(),
    stranger=st.booleans(),
    approves=st.booleans(),
)


@given(SUBJECTS, RULES, st.none() | st.sets(NAMES))
def test_decisions_follow_the_first_matching_rule(
    subject: RuleSubject, rules: list[Rule], changed: set[str] | None
) -> None:
    """No stranger's change gets past a forbidding rule; only earlier rules hide a rule."""
    ruled = decide(subject, rules, lambda: changed)
    first = next((one for one in rules if is_for(one, subject)), None)
    if isinstance(ruled, Ignored):
        assert (ruled.reason is IgnoreReason.NO_RULE) is (bool(rules) and first is None)
        return
    forks = first.forks if first else Forks.APPROVE
    if subject.stranger:
        assert ruled.priority is None
        assert forks is not Forks.NONE
        spoken_for = subject.approves or subject.event is RuleEvent.RERUN
        assert ruled.needs_approval is (forks is Forks.APPROVE and not spoken_for)
    else:
        assert not ruled.needs_approval
    if subject.of_change_request:
        assert ruled.priority is None
