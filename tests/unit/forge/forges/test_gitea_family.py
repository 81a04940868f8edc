"""The origin and the head of a Gitea or Forgejo pull request."""

import json
from typing import Any

import pytest

from solstice_forge.forges import gitea_family
from solstice_forge.forges.events import ChangeRequest, Ignored, IgnoreReason

SHA = "a1" * 20


def side(ref: str, repo_id: int | None = None, name: str | None = None) -> dict[str, Any]:
    repo = name and {"full_name": name, "clone_url": f"https://forge.example/{name}.git"}
    return {"ref": ref, "sha": SHA, "repo_id": repo_id, "repo": repo}


def opened(head: dict[str, Any], base: dict[str, Any], **changes: Any) -> ChangeRequest:
    document = {
        "action": "opened",
        "number": 7,
        "pull_request": {
            "head": head,
            "base": base,
            "draft": True,
            "updated_at": "2026-01-31T12:00:00+01:00",
        },
        "repository": {"full_name": "river/otter", "clone_url": "https://forge.example/river/otter.git"},
        "sender": {"login": "dora"},
    }
    event = gitea_family.parse("pull_request", json.dumps({**document, **changes}).encode())
    assert isinstance(event, ChangeRequest)
    return event


OWN, FORK = "river/otter", "dora/otter"


@pytest.mark.parametrize(
    ("head", "base", "is_fork"),
    [
        pytest.param(side("spring", 1, OWN), side("main", 1, OWN), False, id="same repository"),
        pytest.param(side("spring", 2, FORK), side("main", 1, OWN), True, id="another repository"),
        pytest.param(side("spring", name=FORK), side("main", name=OWN), True, id="another name alone"),
        pytest.param(side("spring", name=OWN), side("main", name=OWN), False, id="same name alone"),
        pytest.param(side("spring", 2), side("main", 1), True, id="another number alone"),
        pytest.param(side("spring", 1), side("main", 1), False, id="same number alone"),
        pytest.param(side("spring", 2, OWN), side("main", 1, OWN), True, id="a fork under the same name"),
        pytest.param(side("spring"), side("main"), None, id="nothing told"),
        pytest.param(side("spring", 1), side("main"), None, id="base not told"),
        pytest.param(side("spring"), side("main", 1, OWN), None, id="head not told"),
        pytest.param(side("refs/pull/7/head", 1, OWN), side("main", 1, OWN), None, id="pushed to refs/for"),
    ],
)
def test_pull_request_is_of_the_repository_only_when_both_sides_say_so(
    head: dict[str, Any], base: dict[str, Any], is_fork: bool | None
) -> None:
    assert opened(head, base).is_fork is is_fork


def test_pull_request_names_its_head_and_its_target() -> None:
    event = opened(side("spring", 2, FORK), side("main", 1, OWN))
    assert event == ChangeRequest(
        repo_full_name=OWN,
        repo_url="https://forge.example/river/otter.git",
        number=7,
        action="opened",
        ref="refs/pull/7/head",
        commit_sha=SHA,
        base_ref="main",
        head_ref="spring",
        is_fork=True,
        head_repo_full_name=FORK,
        head_repo_url="https://forge.example/dora/otter.git",
        draft=True,
        sender="dora",
        occurred_at=1769857200.0,
    )


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronized", "synchronize"])
def test_pull_request_with_new_code_is_built_under_either_spelling(action: str) -> None:
    assert opened(side("spring"), side("main"), action=action).action == action


def test_draft_and_time_that_are_not_reported_are_unknown() -> None:
    event = opened(side("spring"), side("main"), pull_request={"head": side("spring"), "base": side("main")})
    assert event.draft is None
    assert event.occurred_at is None


@pytest.mark.parametrize("sender", [None, {"login": ""}, {}])
def test_sender_without_a_name_is_unknown(sender: dict[str, str] | None) -> None:
    assert opened(side("spring"), side("main"), sender=sender).sender is None


@pytest.mark.parametrize(
    ("event_name", "document", "reason"),
    [
        ("pull_request", {"action": "closed"}, IgnoreReason.NO_NEW_CODE),
        ("pull_request_approved", {"action": "reviewed"}, IgnoreReason.NO_NEW_CODE),
        ("release", {"action": "updated"}, IgnoreReason.NOT_A_CODE_EVENT),
        ("repository", {"action": "created"}, IgnoreReason.NOT_A_CODE_EVENT),
        ("create", {}, IgnoreReason.PUSH_FOLLOWS),
        ("delete", {}, IgnoreReason.REF_DELETED),
    ],
)
def test_what_brings_no_code_is_ignored_for_its_reason(
    event_name: str, document: dict[str, Any], reason: IgnoreReason
) -> None:
    named = {**document, "repository": {"full_name": OWN}}
    event = gitea_family.parse(event_name, json.dumps(named).encode())
    assert isinstance(event, Ignored)
    assert (event.reason, event.repo_full_name) == (reason, OWN)
