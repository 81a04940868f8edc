"""How rules change the triage of a delivery and its request."""

import dataclasses
import json
from typing import Any

import pytest

from solstice_common.messages import Priority, Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import PlannedRun
from solstice_forge.decisions.rules import Forks, Rule, RuleEvent
from solstice_forge.decisions.ruling import ruling
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import Dispatch, Event, Ignored, IgnoreReason, Push, Rerun
from solstice_forge.forges.push_contents import changed_paths, head_message
from tests.webhooks.deliveries import Delivery, deliveries

PUSHES = {name: deliveries()[f"{name}/push-branch"] for name in ("github", "forgejo", "gitea", "gitlab")}
FORK = deliveries()["forgejo/pull-request-opened-fork"]


def understood(delivery: Delivery, *rules: Rule, **changes: Any) -> UnderstoodDelivery:
    body = delivery.body
    if changes:
        body = json.dumps({**json.loads(body), **changes}).encode()
    source = dataclasses.replace(delivery.source, rules=rules)
    triaged = triage(source, delivery.headers, body, now=delivery.now, verify=False)
    assert isinstance(triaged, UnderstoodDelivery)
    return triaged


def reason(triaged: UnderstoodDelivery) -> IgnoreReason | None:
    return triaged.event.reason if isinstance(triaged.event, Ignored) else None


def with_message(delivery: Delivery, message: str) -> dict[str, Any]:
    document = json.loads(delivery.body)
    changes: dict[str, Any] = {"commits": [{**commit, "message": message} for commit in document["commits"]]}
    if "head_commit" in document:
        changes["head_commit"] = {**document["head_commit"], "message": message}
    return changes


@pytest.mark.parametrize("forge", PUSHES)
def test_rule_reaches_the_request(forge: str) -> None:
    triaged = understood(PUSHES[forge], Rule(name="r", priority=Priority.HIGH, runs_on="illumos"))
    assert isinstance(triaged.planned, PlannedRun)
    request = triaged.planned.request
    assert (request.priority, request.runs_on, request.needs_approval) == (Priority.HIGH, "illumos", None)


@pytest.mark.parametrize("forge", PUSHES)
def test_push_that_no_rule_is_for_is_kept_as_ignored(forge: str) -> None:
    push = PUSHES[forge]
    triaged = understood(push, Rule(name="tags", events=frozenset({RuleEvent.TAG})))
    stored = new_delivery(push.source, push.headers, triaged, push.now)
    assert (stored.reason, stored.request) == ("no_rule", None)
    assert str(triaged.event.repo_full_name) in stored.detail


@pytest.mark.parametrize("forge", PUSHES)
def test_push_is_built_by_the_paths_it_lists(forge: str) -> None:
    paths = changed_paths(PUSHES[forge].origin, PUSHES[forge].body)
    assert paths
    some = min(paths)
    assert reason(understood(PUSHES[forge], Rule(name="r", paths=(some,)))) is None
    other = Rule(name="r", paths=("nothing/**",))
    assert reason(understood(PUSHES[forge], other)) is IgnoreReason.PATHS_NOT_BUILT


NOT_REPORTED = {
    "new branch": {"before": "0" * 40},
    "what came before not told": {"before": ""},
    "forced": {"forced": True},
    "no commits": {"commits": []},
    "null commits": {"commits": None},
    "more commits than listed": {"total_commits": 16, "total_commits_count": 21},
    "no files": {"commits": [{"id": "a" * 40, "added": None}]},
    "unreadable": {"commits": 7},
}


@pytest.mark.parametrize("changes", NOT_REPORTED.values(), ids=NOT_REPORTED)
def test_push_with_an_incomplete_list_of_paths_is_built(changes: dict[str, Any]) -> None:
    push = PUSHES["forgejo"]
    assert changed_paths(Source.FORGEJO, json.dumps({**json.loads(push.body), **changes}).encode()) is None
    if changes != NOT_REPORTED["unreadable"]:
        assert reason(understood(push, Rule(name="r", paths=("nothing/**",)), **changes)) is None


def test_push_without_a_previous_commit_has_unknown_paths() -> None:
    document = json.loads(PUSHES["github"].body)
    del document["before"]
    assert changed_paths(Source.GITHUB, json.dumps(document).encode()) is None


def test_forge_that_gives_no_total_leaves_the_paths_unknown() -> None:
    document = json.loads(PUSHES["gitea"].body)
    del document["total_commits"]
    assert changed_paths(Source.GITEA, json.dumps(document).encode()) is None


@pytest.mark.parametrize("kind", ["added", "modified", "removed"])
def test_commit_that_lists_one_kind_of_change_names_its_paths(kind: str) -> None:
    document = json.loads(PUSHES["github"].body)
    whole = {**document, "commits": [{"id": "a" * 40, kind: ["a"]}]}
    assert changed_paths(Source.GITHUB, json.dumps(whole).encode()) == frozenset({"a"})


def test_github_lists_2048_commits() -> None:
    document = json.loads(PUSHES["github"].body)
    commit = {"id": "a" * 40, "added": [], "modified": ["a"], "removed": []}
    fewer, most = ({**document, "commits": [commit] * count} for count in (2047, 2048))
    assert changed_paths(Source.GITHUB, json.dumps(fewer).encode()) == frozenset({"a"})
    assert changed_paths(Source.GITHUB, json.dumps(most).encode()) is None


MESSAGES = {
    "a boat [skip ci]": True,
    "a boat\n\n[ci skip] for once": True,
    "a boat [SKIP CI]": False,
    "skip ci": False,
}


@pytest.mark.parametrize("rules", [(), (Rule(name="r"),)], ids=["no rules", "a rule"])
@pytest.mark.parametrize("forge", PUSHES)
@pytest.mark.parametrize(("message", "skipped"), MESSAGES.items())
def test_head_commit_asks_to_be_skipped(
    forge: str, message: str, *, skipped: bool, rules: tuple[Rule, ...]
) -> None:
    push = PUSHES[forge]
    triaged = understood(push, *rules, **with_message(push, message))
    assert reason(triaged) is (IgnoreReason.SKIP_CI if skipped else None)


def test_mark_in_an_older_commit_skips_nothing() -> None:
    push = PUSHES["gitlab"]
    (newest,) = json.loads(push.body)["commits"]
    older = {**newest, "id": "a" * 40, "message": "[skip ci]"}
    assert reason(understood(push, commits=[older, newest])) is None
    assert head_message(newest["id"], b"nonsense [skip ci]") is None


def test_tag_of_a_skipped_commit_is_built() -> None:
    push = deliveries()["github/push-annotated-tag"]
    assert reason(understood(push, **with_message(push, "[skip ci]"))) is None


FORKS = {
    (): "waits",
    (Rule(name="r"),): "waits",
    (Rule(name="r", forks=Forks.ALL),): "built",
    (Rule(name="r", forks=Forks.NONE),): "fork_not_built",
    (Rule(name="r", forks=Forks.TRUSTED),): "fork_not_built",
}


@pytest.mark.parametrize(("rules", "word"), FORKS.items(), ids=["default", "rule", "all", "none", "trusted"])
def test_change_request_of_a_fork(rules: tuple[Rule, ...], word: str) -> None:
    triaged = understood(FORK, *rules)
    refused = reason(triaged)
    if not isinstance(triaged.planned, PlannedRun):
        assert refused is not None
        assert refused.value == word
        return
    request = triaged.planned.request
    assert request.trusted is False
    assert request.needs_approval is (True if word == "waits" else None)


HARBOUR: dict[str, Any] = {
    "repo_full_name": "lantern/harbour",
    "repo_url": "https://forge.example/lantern/harbour.git",
}


def pushed(ref: str) -> Push:
    return Push(**HARBOUR, ref=ref, commit_sha="a" * 40, before_sha=None, sender="cleo")


def dispatched(ref: str) -> Dispatch:
    return Dispatch(**HARBOUR, ref=ref, commit_sha="a" * 40, action=None, workflow_path=None, sender="cleo")


def rerun(branch: str | None, *, number: int | None = None, is_fork: bool | None = False) -> Rerun:
    return Rerun(
        **HARBOUR,
        commit_sha="a" * 40,
        branch=branch,
        number=number,
        check=None,
        action="rerequested",
        sender="cleo",
        is_fork=is_fork,
    )


@pytest.mark.parametrize(
    ("branch", "is_fork", "refused"),
    [
        ("main", True, True),
        (None, False, False),
        # GitHub names no branch for a commit that came from a fork.
        (None, None, True),
        ("main", None, False),
    ],
)
def test_rerun_of_a_forks_commit_is_known_by_its_mark_and_else_by_its_absent_branch(
    branch: str | None, is_fork: bool | None, refused: bool
) -> None:
    source = dataclasses.replace(PUSHES["github"].source, rules=(Rule(name="r", forks=Forks.NONE),))
    ruled = ruling(rerun(branch, is_fork=is_fork), source, b"")
    assert (isinstance(ruled, Ignored) and ruled.reason is IgnoreReason.FORK_NOT_BUILT) is refused


JUDGED_BY_BRANCH: dict[str, tuple[Event, IgnoreReason | None]] = {
    "push": (pushed("refs/heads/release/1"), None),
    "push elsewhere": (pushed("refs/heads/main"), IgnoreReason.BRANCH_NOT_BUILT),
    "tag": (pushed("refs/tags/v1"), None),
    "merge queue": (pushed("refs/heads/gh-readonly-queue/release/1/pr-7-5f2c"), None),
    "merge queue elsewhere": (
        pushed("refs/heads/gh-readonly-queue/main/pr-7-5f2c"),
        IgnoreReason.BRANCH_NOT_BUILT,
    ),
    "dispatch": (dispatched("refs/heads/release/1"), None),
    "dispatch elsewhere": (dispatched("refs/heads/main"), IgnoreReason.BRANCH_NOT_BUILT),
    "dispatch of a tag": (dispatched("refs/tags/v1"), None),
    "rerun": (rerun("release/1"), None),
    "rerun elsewhere": (rerun("main"), IgnoreReason.BRANCH_NOT_BUILT),
    # Its branch is the one that wants to be merged, which no rule speaks of.
    "rerun of a change request": (rerun("main", number=7), None),
}


@pytest.mark.parametrize(("event", "refusal"), JUDGED_BY_BRANCH.values(), ids=list(JUDGED_BY_BRANCH))
def test_rule_for_some_branches_refuses_what_is_of_others(event: Event, refusal: IgnoreReason | None) -> None:
    source = dataclasses.replace(PUSHES["github"].source, rules=(Rule(name="r", branches=("release/*",)),))
    ruled = ruling(event, source, b"")
    assert (ruled.reason if isinstance(ruled, Ignored) else None) is refusal


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (pushed("refs/heads/main"), RuleEvent.PUSH),
        (pushed("refs/tags/v1"), RuleEvent.TAG),
        (pushed("refs/heads/gh-readonly-queue/main/pr-7-5f2c"), RuleEvent.MERGE_GROUP),
        (dispatched("refs/heads/main"), RuleEvent.DISPATCH),
        (rerun("main"), RuleEvent.RERUN),
    ],
    ids=["push", "tag", "merge queue", "dispatch", "rerun"],
)
def test_rule_for_one_kind_of_event_is_for_no_other(event: Event, kind: RuleEvent) -> None:
    def refusal(events: frozenset[RuleEvent]) -> IgnoreReason | None:
        source = dataclasses.replace(PUSHES["github"].source, rules=(Rule(name="r", events=events),))
        ruled = ruling(event, source, b"")
        return ruled.reason if isinstance(ruled, Ignored) else None

    assert refusal(frozenset({kind})) is None
    assert refusal(frozenset(RuleEvent) - {kind}) is IgnoreReason.NO_RULE
