"""The questions to a forge about a delivery, and the effects of answers."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from solstice_forge.forges.events import (
    OF_AUTHORS,
    Command,
    CommandKind,
    Dispatch,
    Ignored,
    IgnoreReason,
    Incomplete,
    LackingField,
    Release,
    Rerun,
    decode_lacking,
    encode_lacking,
    lacks,
)
from solstice_forge.lookups.forge_questions import (
    APPROVAL_SECONDS,
    GIVE_UP_SECONDS,
    ForgeQuestion,
    next_question,
    refused,
    too_late,
    without_access,
)
from solstice_forge.remote import gitea_family_calls, github_calls, gitlab_calls
from solstice_forge.remote.protocol import CallPostponed, CallRefused, ChangeRequestHead

SHA = "a" * 40
COMMAND = Command(
    word=CommandKind.RETEST,
    repo_full_name="tide-club/almanac",
    repo_url="https://forge.example/tide-club/almanac.git",
    number=3,
    ref="refs/pull/3/head",
    action="created",
    commit_sha=None,
    is_fork=None,
    asked="11",
    sender="cleo",
    sender_id=5,
)
RELEASE = Release(
    repo_full_name=COMMAND.repo_full_name,
    repo_url=COMMAND.repo_url,
    ref="refs/tags/v1",
    commit_sha=None,
    action="published",
    asked="7",
    sender="cleo",
)
DISPATCH = Dispatch(
    repo_full_name=COMMAND.repo_full_name,
    repo_url=COMMAND.repo_url,
    ref="refs/heads/main",
    commit_sha=None,
    action=None,
    workflow_path=None,
    sender="cleo",
)
RERUN = Rerun(
    repo_full_name=COMMAND.repo_full_name,
    repo_url=COMMAND.repo_url,
    commit_sha=SHA,
    branch="main",
    number=None,
    check=None,
    action="rerequested",
    sender="cleo",
)
APPROVAL = replace(COMMAND, word=CommandKind.OK_TO_TEST)


@dataclass
class ScriptedAnswers:
    """The answers of a forge; `paths` collects the paths of the questions."""

    may_write: bool = True
    head: ChangeRequestHead = ChangeRequestHead(  # noqa: RUF009  it is frozen
        commit_sha=SHA, is_fork=True, is_open=True, base_ref="main", head_ref="spring"
    )
    paths: list[str] = field(default_factory=list)

    def completes(self, event: Incomplete, dialect: Any = github_calls) -> Incomplete | Ignored:
        """The event after all questions were answered."""
        state: Incomplete | Ignored = event
        while not isinstance(state, Ignored):
            question = next_question(state, dialect)
            if not isinstance(question, ForgeQuestion):
                return question
            path = question.call.path
            self.paths.append(path.rpartition("tide-club/almanac/")[2] or path)
            state = question.answered(
                self.may_write
                if "permission" in path or "members" in path
                else self.head
                if "/pulls/" in path
                else SHA
            )
        return state


@pytest.mark.parametrize("event", [RELEASE, DISPATCH], ids=["release", "dispatch"])
def test_commit_of_a_ref_is_all_that_is_asked_for(event: Release | Dispatch) -> None:
    forge = ScriptedAnswers()
    assert forge.completes(event) == replace(event, commit_sha=SHA)
    assert forge.paths == [f"commits/{event.ref.removeprefix('refs/')}"]


def test_command_of_an_author_who_may_write_is_of_the_head_commit() -> None:
    forge = ScriptedAnswers()
    complete = forge.completes(COMMAND)
    assert isinstance(complete, Command)
    assert (complete.commit_sha, complete.is_fork, complete.base_ref) == (SHA, True, "main")
    assert complete.head_ref == "spring"
    assert lacks(complete) == ()
    assert forge.paths == ["collaborators/cleo/permission", "pulls/3"]


@pytest.mark.parametrize("word", list(CommandKind))
@pytest.mark.parametrize("by_author", [True, False], ids=["author", "stranger"])
@pytest.mark.parametrize("may_write", [True, False], ids=["writes", "reads"])
def test_who_may_give_a_command(word: CommandKind, by_author: bool, may_write: bool) -> None:
    forge = ScriptedAnswers(may_write=may_write)
    outcome = forge.completes(replace(COMMAND, word=word, by_author=by_author))
    if may_write or (by_author and word in {CommandKind.RETEST, CommandKind.CANCEL}):
        assert isinstance(outcome, Command)
    else:
        assert isinstance(outcome, Ignored)
        assert outcome.reason is IgnoreReason.NOT_ALLOWED
        assert forge.paths == ["collaborators/cleo/permission"]


def test_cancel_asks_for_the_right_alone_whether_the_change_request_is_open_or_not() -> None:
    forge = ScriptedAnswers()
    cancel = replace(COMMAND, word=CommandKind.CANCEL)
    assert lacks(cancel) == (LackingField.PERMISSION,)
    assert forge.completes(cancel) == replace(cancel, permitted=True)
    assert forge.paths == ["collaborators/cleo/permission"]


def test_cancel_of_who_made_the_change_request_asks_for_nothing() -> None:
    assert lacks(replace(COMMAND, word=CommandKind.CANCEL, by_author=True)) == ()


def test_an_unknown_sender_may_not_give_a_command() -> None:
    for dialect, answer_for_unknown in (
        (github_calls, replace(COMMAND, sender=None)),
        (gitlab_calls, replace(COMMAND, sender_id=None)),
    ):
        outcome = ScriptedAnswers().completes(answer_for_unknown, dialect)
        assert isinstance(outcome, Ignored)
        assert outcome.reason is IgnoreReason.NOT_ALLOWED


def test_commit_of_the_delivery_is_the_approved_one() -> None:
    known = replace(APPROVAL, commit_sha="b" * 40, is_fork=True)
    forge = ScriptedAnswers()
    assert forge.completes(known) == replace(known, permitted=True)
    assert len(forge.paths) == 1


@pytest.mark.parametrize("is_on", [True, False])
def test_rerun_is_of_the_repository_when_its_branch_holds_the_commit(is_on: bool) -> None:
    question = next_question(RERUN, github_calls)
    assert isinstance(question, ForgeQuestion)
    assert question.call.path == f"/repos/tide-club/almanac/compare/{SHA}...main"
    answered = question.answered(is_on)
    assert answered == replace(RERUN, is_fork=not is_on)
    assert isinstance(answered, Rerun)
    assert next_question(answered, github_calls) == answered


def test_rerun_without_a_branch_is_a_forks_and_needs_no_lookup() -> None:
    assert next_question(replace(RERUN, branch=None), github_calls) == replace(
        RERUN, branch=None, is_fork=True
    )


def test_closed_change_request_is_not_built() -> None:
    outcome = ScriptedAnswers(head=ChangeRequestHead(commit_sha=SHA, is_fork=False, is_open=False)).completes(
        COMMAND
    )
    assert isinstance(outcome, Ignored)
    assert outcome.reason is IgnoreReason.CHANGE_CLOSED


@pytest.mark.parametrize(("reported", "is_fork"), [(True, True), (False, False), (None, True)])
def test_what_is_not_known_to_be_of_the_repository_is_a_forks(reported: bool | None, is_fork: bool) -> None:
    outcome = ScriptedAnswers(
        head=ChangeRequestHead(commit_sha=SHA, is_fork=reported, is_open=True)
    ).completes(COMMAND, gitea_family_calls)
    assert isinstance(outcome, Command)
    assert outcome.is_fork is is_fork


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (404, IgnoreReason.NOT_AT_FORGE),
        (422, IgnoreReason.NOT_AT_FORGE),
        (403, IgnoreReason.FORGE_REFUSED),
        (0, IgnoreReason.FORGE_REFUSED),
    ],
)
def test_refusal_has_the_forges_words(status: int, reason: IgnoreReason) -> None:
    outcome = refused(RELEASE, CallRefused(status=status, detail="no such thing"))
    assert outcome.reason is reason
    assert "no such thing" in outcome.detail
    assert outcome.repo_full_name == RELEASE.repo_full_name


def test_without_access_the_reason_names_the_source_and_what_lacks() -> None:
    outcome = without_access(COMMAND, "acme")
    assert outcome.reason is IgnoreReason.NO_ACCESS
    assert "acme" in outcome.detail
    assert "author_permission" in outcome.detail


@given(st.floats(min_value=0, max_value=GIVE_UP_SECONDS * 2))
def test_approval_of_an_unnamed_commit_expires_soon(age: float) -> None:
    later = CallPostponed(at=0.0, why="502 Bad Gateway")
    assert (too_late(RELEASE, age, later) is None) is (age <= GIVE_UP_SECONDS)
    assert (too_late(replace(APPROVAL, commit_sha=SHA), age, later) is None) is (age <= GIVE_UP_SECONDS)
    ended = too_late(APPROVAL, age, later)
    assert (ended is None) is (age <= APPROVAL_SECONDS)
    if ended is not None:
        assert ended.reason is IgnoreReason.TOO_LATE
        assert later.why in ended.detail


@pytest.mark.parametrize(
    "event",
    [COMMAND, APPROVAL, RELEASE, DISPATCH, RERUN],
    ids=["retest", "ok", "release", "dispatch", "rerun"],
)
def test_what_was_kept_is_read_again(event: Incomplete) -> None:
    assert decode_lacking(encode_lacking(event)) == event


@given(st.binary(max_size=200))
def test_what_another_version_kept_is_a_value_error(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_lacking(stored)


@pytest.mark.parametrize("word", list(CommandKind))
def test_the_refusal_says_whether_the_author_may_give_the_command(word: CommandKind) -> None:
    outcome = ScriptedAnswers(may_write=False).completes(replace(COMMAND, word=word, by_author=False))
    assert isinstance(outcome, Ignored)
    assert ("made the change request" in outcome.detail) is (word in OF_AUTHORS)


@pytest.mark.parametrize("known", [True, False], ids=["fork", "own"])
def test_origin_of_the_code_stays_as_in_the_delivery(known: bool) -> None:
    outcome = ScriptedAnswers(
        head=ChangeRequestHead(commit_sha=SHA, is_fork=not known, is_open=True)
    ).completes(replace(COMMAND, is_fork=known))
    assert isinstance(outcome, Command)
    assert (outcome.is_fork, outcome.commit_sha) == (known, SHA)


@pytest.mark.parametrize(
    ("event", "seconds", "limit"),
    [(APPROVAL, APPROVAL_SECONDS, "120 s"), (RELEASE, GIVE_UP_SECONDS, "24 hours")],
    ids=["approval", "release"],
)
def test_the_last_moment_is_still_in_time_and_the_next_names_the_limit(
    event: Incomplete, seconds: float, limit: str
) -> None:
    assert too_late(event, seconds, None) is None
    ended = too_late(event, seconds + 0.1, None)
    assert ended is not None
    assert limit in ended.detail
    assert ended.detail.endswith(("comment again", "24 hours"))
