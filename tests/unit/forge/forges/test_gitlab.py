"""Known and missing facts of GitLab's merge requests, notes and releases."""

import json
from typing import Any

import pytest

from solstice_forge.forges import gitlab
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

SHA, OLD = "a1" * 20, "b2" * 20
PROJECT = {"path_with_namespace": "river/otter", "git_http_url": "https://gitlab.example/river/otter.git"}
FORK = {"path_with_namespace": "dora/otter", "git_http_url": "https://gitlab.example/dora/otter.git"}
REQUEST = {
    "iid": 7,
    "action": "open",
    "source_branch": "spring",
    "target_branch": "main",
    "source_project_id": 1,
    "target_project_id": 1,
    "source": PROJECT,
    "last_commit": {"id": SHA},
    "draft": False,
    "updated_at": "2026-01-31 12:00:00 UTC",
}
NOTE = {
    "id": 11,
    "author_id": 5,
    "action": "create",
    "noteable_type": "MergeRequest",
    "note": "/retest",
    "created_at": "2026-01-31 12:00:00 UTC",
}


def parsed(hook: str, **document: Any) -> Event | Ignored | Malformed:
    return gitlab.parse(hook, json.dumps({"project": PROJECT, **document}).encode())


def merge_request(user: dict[str, str] | None = None, **changes: Any) -> Event | Ignored | Malformed:
    return parsed("Merge Request Hook", object_attributes={**REQUEST, **changes}, user=user)


def changed(**changes: Any) -> ChangeRequest:
    event = merge_request(**changes)
    assert isinstance(event, ChangeRequest)
    return event


def noted(
    request: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **changes: Any
) -> Event | Ignored | Malformed:
    of = {**REQUEST, "author_id": 9, **(request or {})}
    return parsed("Note Hook", object_attributes={**NOTE, **changes}, merge_request=of, user=user)


def command(
    request: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **changes: Any
) -> Command:
    event = noted(request, user, **changes)
    assert isinstance(event, Command)
    return event


def test_merge_request_names_its_head_and_its_target() -> None:
    assert changed(user={"username": "dora"}, source_project_id=2, source=FORK) == ChangeRequest(
        repo_full_name="river/otter",
        repo_url=PROJECT["git_http_url"],
        number=7,
        action="open",
        ref="refs/merge-requests/7/head",
        commit_sha=SHA,
        base_ref="main",
        head_ref="spring",
        is_fork=True,
        head_repo_full_name="dora/otter",
        head_repo_url=FORK["git_http_url"],
        draft=False,
        sender="dora",
        occurred_at=1769860800.0,
    )


@pytest.mark.parametrize(("source", "is_fork"), [(1, False), (2, True), (None, True)])
def test_merge_request_is_a_forks_unless_it_comes_from_the_project(source: int | None, is_fork: bool) -> None:
    assert changed(source_project_id=source).is_fork is is_fork


@pytest.mark.parametrize(
    ("draft", "work_in_progress", "expected"),
    [(True, None, True), (False, True, False), (None, True, True), (None, None, None)],
)
def test_draft_has_an_older_name(
    draft: bool | None, work_in_progress: bool | None, expected: bool | None
) -> None:
    assert changed(draft=draft, work_in_progress=work_in_progress).draft is expected


@pytest.mark.parametrize(
    ("action", "oldrev", "is_built"),
    [
        ("open", None, True),
        ("reopen", None, True),
        ("update", OLD, True),
        ("update", None, False),
        ("close", None, False),
        ("approved", OLD, False),
    ],
)
def test_merge_request_is_built_when_it_has_new_code(action: str, oldrev: str | None, is_built: bool) -> None:
    event = merge_request(action=action, oldrev=oldrev)
    if is_built:
        assert isinstance(event, ChangeRequest)
        assert event.before_sha == oldrev
    else:
        assert isinstance(event, Ignored)
        assert (event.reason, event.repo_full_name) == (IgnoreReason.NO_NEW_CODE, "river/otter")


def test_merge_request_without_a_commit_is_ignored() -> None:
    event = merge_request(last_commit=None)
    assert isinstance(event, Ignored)
    assert event.reason is IgnoreReason.NO_NEW_CODE


def test_command_has_what_the_note_contains_about_the_merge_request() -> None:
    reported = command({"source_project_id": 2, "source": FORK}, {"id": 5, "username": "cleo"})
    assert reported == Command(
        word=CommandKind.RETEST,
        repo_full_name="river/otter",
        repo_url=PROJECT["git_http_url"],
        number=7,
        ref="refs/merge-requests/7/head",
        action="create",
        commit_sha=SHA,
        is_fork=True,
        base_ref="main",
        head_ref="spring",
        head_repo_url=FORK["git_http_url"],
        asked="11",
        by_author=False,
        sender="cleo",
        sender_id=5,
        occurred_at=1769860800.0,
    )


@pytest.mark.parametrize(
    ("author", "of_request", "by_author"),
    [(5, 5, True), (5, 9, False), (None, None, False), (5, None, False)],
)
def test_command_is_by_the_author_only_when_both_are_known_and_the_same(
    author: int | None, of_request: int | None, by_author: bool
) -> None:
    assert command({"author_id": of_request}, author_id=author).by_author is by_author


@pytest.mark.parametrize(
    ("author", "user", "sender_id"),
    [(5, {"id": 6}, 5), (None, {"id": 6}, 6), (5, None, 5), (None, None, None)],
)
def test_rights_are_asked_for_of_the_notes_author_or_else_of_the_user(
    author: int | None, user: dict[str, Any] | None, sender_id: int | None
) -> None:
    assert command(None, user, author_id=author).sender_id == sender_id


@pytest.mark.parametrize(
    ("source", "target", "is_fork"), [(1, 1, False), (2, 1, True), (None, 1, None), (1, None, None)]
)
def test_note_that_does_not_name_both_projects_leaves_open_whose_code_it_is(
    source: int | None, target: int | None, is_fork: bool | None
) -> None:
    reported = command({"source_project_id": source, "target_project_id": target})
    assert reported.is_fork is is_fork
    assert (reported.head_repo_url is not None) is (is_fork is True)


@pytest.mark.parametrize(
    "changes",
    [{"action": "update"}, {"noteable_type": "Commit"}, {"note": "please /retest"}, {"note": None}],
    ids=["edited", "on a commit", "no command", "no text"],
)
def test_note_without_a_new_command_on_a_merge_request_is_ignored(changes: dict[str, Any]) -> None:
    event = noted(**changes)
    assert isinstance(event, Ignored)
    assert event.reason is IgnoreReason.NO_COMMAND


def test_old_gitlab_names_no_action_of_a_new_note() -> None:
    assert command(action=None).word is CommandKind.RETEST


def released(**changes: Any) -> Event | Ignored | Malformed:
    whole = {"id": 3, "created_at": "2026-01-31 12:00:00 UTC", "tag": "v1", "commit": {"id": SHA}}
    return parsed("Release Hook", action="create", **{**whole, **changes})


def test_release_is_of_its_tag_and_distinguished_by_number_and_time() -> None:
    assert released() == Release(
        repo_full_name="river/otter",
        repo_url=PROJECT["git_http_url"],
        ref="refs/tags/v1",
        commit_sha=SHA,
        action="create",
        asked="3 2026-01-31 12:00:00 UTC",
        sender=None,
    )
    bare = released(id=None, created_at=None)
    assert isinstance(bare, Release)
    assert bare.asked == " "


def test_system_hook_names_its_kind_in_the_body() -> None:
    pushed = {"ref": "refs/heads/main", "after": SHA, "checkout_sha": SHA, "before": OLD}
    event = parsed("System Hook", event_name="push", **pushed)
    assert isinstance(event, Push)
    assert (event.commit_sha, event.before_sha) == (SHA, OLD)
    assert isinstance(parsed("System Hook", object_kind="push", **pushed), Push)
    other = parsed("System Hook", event_name="project_create")
    assert isinstance(other, Ignored)
    assert other.reason is IgnoreReason.NOT_A_CODE_EVENT
    assert "project_create" in other.detail
