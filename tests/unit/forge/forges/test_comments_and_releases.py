"""Comments and releases as GitHub, Gitea and Forgejo write them."""

import json
from typing import Any

import pytest

from solstice_forge.forges.comments_and_releases import comment, read_release, word_meant, words_in
from solstice_forge.forges.events import Command, CommandKind, Event, Ignored, Malformed, Release
from solstice_forge.forges.payloads import EventEnvelope, read

REPOSITORY = {"full_name": "river/otter", "clone_url": "https://forge.example/river/otter.git"}


def commented(text: str | None = "/retest", **changes: Any) -> Event | Ignored | Malformed:
    document = {
        "action": "created",
        "issue": {"number": 7, "user": {"login": "dora"}, "pull_request": {}},
        "comment": {"id": 11, "body": text, "created_at": "2026-01-31T12:00:00Z"},
        "repository": REPOSITORY,
        "sender": {"login": "cleo"},
        **changes,
    }
    payload = json.dumps(document).encode()
    envelope = read(EventEnvelope, payload)
    assert isinstance(envelope, EventEnvelope)
    return comment(envelope, payload)


def command(**changes: Any) -> Command:
    event = commented(**changes)
    assert isinstance(event, Command)
    return event


def test_command_lacks_what_the_comment_does_not_contain() -> None:
    assert command() == Command(
        word=CommandKind.RETEST,
        repo_full_name="river/otter",
        repo_url="https://forge.example/river/otter.git",
        number=7,
        ref="refs/pull/7/head",
        action="created",
        commit_sha=None,
        is_fork=None,
        asked="11",
        by_author=False,
        sender="cleo",
        sender_id=None,
        occurred_at=1769860800.0,
    )


@pytest.mark.parametrize(
    ("sender", "author", "name", "by_author"),
    [
        ({"login": "dora"}, {"login": "dora"}, "dora", True),
        ({"login": "cleo"}, {"login": "dora"}, "cleo", False),
        (None, None, None, False),
        ({"login": ""}, {"login": ""}, None, False),
    ],
    ids=["author", "another", "nobody named", "empty names"],
)
def test_command_is_by_the_author_only_when_both_are_named_alike(
    sender: Any, author: Any, name: str | None, by_author: bool
) -> None:
    reported = command(sender=sender, issue={"number": 7, "user": author, "pull_request": {}})
    assert (reported.sender, reported.by_author) == (name, by_author)


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "edited"},
        {"issue": {"number": 7}},
        {"text": "please /retest"},
        {"text": None},
        {"comment": None},
    ],
    ids=["edited", "on an issue", "inside a line", "no text", "no comment"],
)
def test_what_is_no_new_command_on_a_pull_request_is_ignored(changes: dict[str, Any]) -> None:
    assert isinstance(commented(**changes), Ignored)


def test_gitea_marks_a_pull_request_beside_the_issue() -> None:
    assert command(issue={"number": 7}, is_pull=True).number == 7


def test_commands_begin_a_line_and_may_be_followed_by_words() -> None:
    assert words_in("thanks!\n  /retest please\nnot /cancel\n/retesting") == {"/retest"}
    assert words_in(None) == frozenset()


def test_of_several_commands_the_one_that_includes_the_others_counts() -> None:
    assert word_meant(frozenset({"/retest", "/ok-to-test", "/cancel"})) is CommandKind.OK_TO_TEST
    assert word_meant(frozenset({"/retest", "/cancel"})) is CommandKind.RETEST
    assert word_meant(frozenset({"/cancel"})) is CommandKind.CANCEL
    assert word_meant(frozenset()) is None


def released(
    published_at: str | None = "2026-01-31T12:00:00Z", **changes: Any
) -> Event | Ignored | Malformed:
    document = {
        "action": "published",
        "release": {"id": 3, "tag_name": "v1", "published_at": published_at},
        "repository": REPOSITORY,
        "sender": {"login": "cleo"},
        **changes,
    }
    return read_release(json.dumps(document).encode())


def test_release_is_of_its_tag_and_distinguished_by_number_and_time() -> None:
    assert released() == Release(
        repo_full_name="river/otter",
        repo_url="https://forge.example/river/otter.git",
        ref="refs/tags/v1",
        commit_sha=None,
        action="published",
        asked="3 2026-01-31T12:00:00Z",
        sender="cleo",
    )
    bare = released(published_at=None, sender=None)
    assert isinstance(bare, Release)
    assert (bare.asked, bare.sender) == ("3 ", None)


@pytest.mark.parametrize("tag", ["a b", "-x", "x" * 250])
def test_release_of_a_tag_that_git_allows_not_is_malformed(tag: str) -> None:
    assert isinstance(released(release={"id": 3, "tag_name": tag}), Malformed)
