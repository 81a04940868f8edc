"""Pushes of GitHub, Gitea and Forgejo, also with odd parts."""

import json
from typing import Any

import pytest

from solstice_forge.forges.events import Ignored, IgnoreReason, Malformed, Push
from solstice_forge.forges.payloads import known_commit, moment_of, names_a_ref, read_push

SHA, OLD, TAG = "a1" * 20, "b2" * 20, "c3" * 20
REPOSITORY = {
    "full_name": "river/otter",
    "clone_url": "https://forge.example/river/otter.git",
    "default_branch": "main",
    "pushed_at": 1769860800,
}


def read(**changes: Any) -> Push | Ignored | Malformed:
    document = {
        "ref": "refs/heads/main",
        "before": OLD,
        "after": SHA,
        "deleted": False,
        "head_commit": {"id": SHA, "message": "more"},
        "repository": REPOSITORY,
        "sender": {"login": "ada"},
        **changes,
    }
    return read_push(json.dumps(document).encode())


def pushed(**changes: Any) -> Push:
    event = read(**changes)
    assert isinstance(event, Push)
    return event


def of_repository(**changes: Any) -> Push:
    return pushed(repository={**REPOSITORY, **changes})


def test_push_names_its_commit_and_the_previous_one() -> None:
    assert pushed() == Push(
        repo_full_name="river/otter",
        repo_url="https://forge.example/river/otter.git",
        ref="refs/heads/main",
        commit_sha=SHA,
        before_sha=OLD,
        sender="ada",
        default_branch="main",
        message="more",
        occurred_at=1769860800.0,
    )


def test_annotated_tag_is_built_at_its_commit() -> None:
    assert pushed(ref="refs/tags/v1", after=TAG).commit_sha == SHA
    assert pushed(ref="refs/tags/v1", after=TAG, head_commit=None).commit_sha == TAG


def test_message_is_only_that_of_the_pushed_commit() -> None:
    assert pushed(head_commit={"id": OLD, "message": "another"}).message is None
    assert pushed(head_commit=None).message is None


@pytest.mark.parametrize("changes", [{"deleted": True}, {"after": "0" * 40}], ids=["deleted", "zeros"])
def test_push_that_deletes_its_ref_is_ignored(changes: dict[str, Any]) -> None:
    event = read(**changes)
    assert isinstance(event, Ignored)
    assert (event.reason, event.repo_full_name) == (IgnoreReason.REF_DELETED, "river/otter")


def test_push_of_neither_a_branch_nor_a_tag_is_ignored() -> None:
    event = read(ref="refs/notes/commits")
    assert isinstance(event, Ignored)
    assert (event.reason, event.repo_full_name) == (IgnoreReason.NOT_A_BRANCH_OR_TAG, "river/otter")


@pytest.mark.parametrize("ref", ["refs/heads/a b", "refs/heads/-x", "refs/heads/", "refs/tags/a^"])
def test_push_of_a_ref_that_git_allows_not_is_malformed(ref: str) -> None:
    assert isinstance(read(ref=ref), Malformed)


@pytest.mark.parametrize(
    ("payload", "expected_detail"),
    [
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"ref": 7, "secret": "hush"}', "Expected `str`, got `int` - at `$.ref`"),
        (b'{"ref": "\xff"}', "UTF-8"),
        (b'{"x":' * 100_000, "recursion"),
    ],
    ids=["no JSON", "no object", "wrong type", "no text", "too deep"],
)
def test_payload_that_cannot_be_read_says_where_and_repeats_nothing(
    payload: bytes, expected_detail: str
) -> None:
    event = read_push(payload)
    assert isinstance(event, Malformed)
    assert expected_detail.lower() in event.detail.lower()
    assert "hush" not in event.detail


@pytest.mark.parametrize("sender", [None, {"login": ""}, {}])
def test_sender_without_a_name_is_unknown(sender: dict[str, str] | None) -> None:
    assert pushed(sender=sender).sender is None


@pytest.mark.parametrize(
    ("name", "is_usable"),
    [("main", True), ("x" * 255, True), ("x" * 256, False), ("a b", False), ("", False), (None, False)],
    ids=["plain", "longest", "too long", "odd", "empty", "none"],
)
def test_default_branch_that_cannot_be_one_is_left_out(name: str | None, is_usable: bool) -> None:
    assert of_repository(default_branch=name).default_branch == (name if is_usable else None)


@pytest.mark.parametrize("pushed_at", ["2026-01-31T12:00:00Z", None, 1769860800000])
def test_time_that_is_not_in_seconds_is_left_out(pushed_at: Any) -> None:
    assert of_repository(pushed_at=pushed_at).occurred_at is None


@pytest.mark.parametrize("before", [None, "", "0" * 40, "0" * 64, "abc", "A" * 40, "a" * 41])
def test_what_is_no_commit_came_before_nothing(before: str | None) -> None:
    assert known_commit(before) is None
    assert pushed(before=before).before_sha is None


def test_commit_of_either_length_is_known() -> None:
    assert known_commit("a" * 40) == "a" * 40
    assert known_commit("a" * 64) == "a" * 64


@pytest.mark.parametrize(
    ("ref", "is_one"),
    [
        ("refs/heads/" + "x" * 244, True),
        ("refs/heads/" + "x" * 245, False),
        ("refs/tags/v1", True),
        ("refs/pull/7/head", False),
        ("main", False),
    ],
    ids=["longest", "too long", "tag", "pull request", "short name"],
)
def test_ref_is_a_branch_or_a_tag_that_our_messages_hold(ref: str, is_one: bool) -> None:
    assert names_a_ref(ref) is is_one


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-31T12:00:00Z", 1769860800.0),
        ("2026-01-31T13:00:00+01:00", 1769860800.0),
        ("2026-01-31 12:00:00 UTC", 1769860800.0),
        ("2026-01-31T12:00:00", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_time_of_a_forge_is_read_when_it_names_its_zone(text: str | None, seconds: float | None) -> None:
    assert moment_of(text) == seconds
