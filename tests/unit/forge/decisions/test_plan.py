"""Planning an event gives one result for events from all sources."""

import pytest
from msgspec.structs import replace

from solstice_common.messages import Priority, Source
from solstice_forge.decisions.plan import PlanOptions, plan, understand
from solstice_forge.decisions.requests import PlannedCancel, PlannedRun
from solstice_forge.decisions.rules import Forks, Rule
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.forges.events import (
    ChangeRequest,
    Command,
    CommandKind,
    Event,
    Ignored,
    IgnoreReason,
    Malformed,
    Push,
    Release,
)

OPTIONS = PlanOptions(delivery_id="d-1", received_at=1_790_000_000.0)
URL = "https://gitea.example/tide-club/almanac.git"
NAME = "tide-club/almanac"
PUSH = Push(
    repo_full_name=NAME,
    repo_url=URL,
    ref="refs/heads/main",
    commit_sha="a" * 40,
    before_sha=None,
    sender="cleo",
    message="spring [skip ci]",
)
FORK = ChangeRequest(
    repo_full_name=NAME,
    repo_url=URL,
    number=3,
    action="opened",
    ref="refs/pull/3/head",
    commit_sha="b" * 40,
    base_ref="main",
    head_ref="spring",
    is_fork=True,
    head_repo_full_name="dora/almanac",
    head_repo_url="https://gitea.example/dora/almanac.git",
    draft=False,
    sender="dora",
)
RELEASE = Release(
    repo_full_name=NAME,
    repo_url=URL,
    ref="refs/tags/v1",
    commit_sha=None,
    action="published",
    asked="1",
    sender="cleo",
)
CANCEL = Command(
    word=CommandKind.CANCEL,
    repo_full_name=NAME,
    repo_url=URL,
    number=3,
    ref="refs/pull/3/head",
    commit_sha="b" * 40,
    base_ref="main",
    is_fork=None,
    action="created",
    asked="1",
    permitted=True,
    sender_id=None,
    sender="dora",
)


def source(*rules: Rule) -> WebhookSource:
    return WebhookSource(name="gitea", forge=FORGES[Source.GITEA], secrets=("s",), rules=rules)


def planned(event: Event, *rules: Rule, options: PlanOptions = OPTIONS) -> PlannedRun:
    outcome_of_plan = plan(event, source(*rules), b"", options)
    assert isinstance(outcome_of_plan, PlannedRun)
    return outcome_of_plan


def test_ruling_shapes_the_request() -> None:
    rule = Rule(name="own", priority=Priority.HIGH, runs_on="big")
    request = planned(replace(PUSH, message="spring"), rule).request
    assert (request.priority, request.runs_on) == (Priority.HIGH, "big")
    assert planned(FORK, Rule(name="forks", forks=Forks.APPROVE)).request.needs_approval


def test_rule_that_builds_nothing_ends_the_plan() -> None:
    ruled = plan(FORK, source(Rule(name="own", forks=Forks.NONE)), b"", OPTIONS)
    assert isinstance(ruled, Ignored)
    assert ruled.reason is IgnoreReason.FORK_NOT_BUILT


def test_replay_ignores_the_skip_mark_of_the_message() -> None:
    skipped = plan(PUSH, source(), b"", OPTIONS)
    assert isinstance(skipped, Ignored)
    assert skipped.reason is IgnoreReason.SKIP_CI
    assert (
        planned(PUSH, options=replace(OPTIONS, ignores_skip_mark=True)).request.commit_sha == PUSH.commit_sha
    )


def test_key_replaces_the_content_key() -> None:
    assert planned(FORK).key == planned(FORK, options=replace(OPTIONS, delivery_id="d-2")).key
    assert planned(FORK, options=replace(OPTIONS, key="replay:7:x")).key == "replay:7:x"


@pytest.mark.parametrize(
    ("event", "options"),
    [(RELEASE, OPTIONS), (FORK, replace(OPTIONS, requires_lookup=True))],
    ids=["lacks its commit", "forge knows more"],
)
def test_forge_is_asked_before_a_request_is_made(event: Event, options: PlanOptions) -> None:
    assert plan(event, source(), b"", options) is None
    understood = understand(event, source(), b"{}", options, event_name="e")
    assert not isinstance(understood, Malformed)
    assert (understood.event, understood.planned) == (event, None)


def test_rules_come_before_questions_to_the_forge() -> None:
    ruled = plan(RELEASE, source(Rule(name="other", repositories=("moon/*",))), b"", OPTIONS)
    assert isinstance(ruled, Ignored)
    assert ruled.reason is IgnoreReason.NO_RULE


def test_cancel_needs_no_rule_but_a_right() -> None:
    other = source(Rule(name="other", repositories=("moon/*",)))
    assert isinstance(plan(CANCEL, other, b"", OPTIONS), PlannedCancel)
    assert plan(replace(CANCEL, permitted=False), other, b"", OPTIONS) is None


def test_value_that_the_schema_refuses_is_malformed() -> None:
    odd = plan(replace(FORK, commit_sha="no commit"), source(), b"", OPTIONS)
    assert isinstance(odd, Malformed)
    assert "commit_sha" in odd.detail
    assert understand(replace(FORK, commit_sha="no commit"), source(), b"", OPTIONS, event_name="e") == odd


def test_delivery_that_is_not_built_says_why() -> None:
    understood = understand(PUSH, source(), b"{}", OPTIONS, event_name="push")
    assert not isinstance(understood, Malformed)
    assert isinstance(understood.event, Ignored)
    assert understood.event.reason is IgnoreReason.SKIP_CI
    assert (understood.planned, understood.payload, understood.event_name) == (None, b"{}", "push")
