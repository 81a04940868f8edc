"""Reads comment commands and releases, which GitHub, Gitea and Forgejo write alike. Pure."""

from typing import Final

from solstice_forge.forges.events import (
    Command,
    CommandKind,
    Event,
    Ignored,
    IgnoreReason,
    Malformed,
    Release,
)
from solstice_forge.forges.payloads import (
    AccountPayload,
    EventEnvelope,
    Number,
    Payload,
    RepositoryPayload,
    Text,
    moment_of,
    names_a_ref,
    read,
)

_WORDS: Final = frozenset(word.value for word in CommandKind)
_BY_WEIGHT: Final = (CommandKind.OK_TO_TEST, CommandKind.RETEST, CommandKind.CANCEL)
"""`/ok-to-test` includes asking for a build, and a new run supersedes what `/cancel` would end."""


class CommentedIssue(Payload, frozen=True, kw_only=True):
    number: Number
    user: AccountPayload | None = None


class CommandComment(Payload, frozen=True, kw_only=True):
    id: Number
    body: str | None = None
    created_at: str | None = None


class CommentPayload(Payload, frozen=True, kw_only=True):
    action: str
    issue: CommentedIssue
    comment: CommandComment
    repository: RepositoryPayload
    sender: AccountPayload | None = None


class NamedRelease(Payload, frozen=True, kw_only=True):
    id: int
    tag_name: Text
    published_at: str | None = None


class ReleasePayload(Payload, frozen=True, kw_only=True):
    action: str
    release: NamedRelease
    repository: RepositoryPayload
    sender: AccountPayload | None = None


def words_in(text: str | None) -> frozenset[str]:
    """Return our command words that begin a line of the comment."""
    first_words = {word for line in (text or "").splitlines() if (word := line.strip().partition(" ")[0])}
    return frozenset(first_words & _WORDS)


def word_meant(words: frozenset[str]) -> CommandKind | None:
    """Return the command that a comment with these words gives: the first in `_BY_WEIGHT`."""
    return next((word for word in _BY_WEIGHT if word in words), None)


def why_no_command(where: str) -> tuple[IgnoreReason, str]:
    """Return why a comment gives no command.

    `where` is the forge's name for a change request.
    """
    return IgnoreReason.NO_COMMAND, f"no new comment with a command on a {where}"


def comment(envelope: EventEnvelope, payload: bytes) -> Event | Ignored | Malformed:
    """Read a comment on an issue or a pull request.

    The payload does not hold the pull request's head.
    """
    words = words_in(envelope.remark)
    word = word_meant(words)
    if word is None:
        return envelope.ignored(*why_no_command("pull request"))
    parsed = read(CommentPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    sender = (parsed.sender.login if parsed.sender else None) or None
    author = (parsed.issue.user.login if parsed.issue.user else None) or None
    return Command(
        word=word,
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        number=parsed.issue.number,
        ref=f"refs/pull/{parsed.issue.number}/head",
        action=parsed.action,
        commit_sha=None,
        is_fork=None,
        asked=str(parsed.comment.id),
        by_author=sender is not None and sender == author,
        sender=sender,
        sender_id=None,
        occurred_at=moment_of(parsed.comment.created_at),
    )


def read_release(payload: bytes) -> Event | Ignored | Malformed:
    """Read a published release.

    The payload names its tag, and a commit only by a branch that may have moved.
    """
    parsed = read(ReleasePayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    return release_event(
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        tag=parsed.release.tag_name,
        commit_sha=None,
        action=parsed.action,
        asked=f"{parsed.release.id} {parsed.release.published_at or ''}",
        sender=parsed.sender.login if parsed.sender else None,
    )


def release_event(
    *,
    repo_full_name: str,
    repo_url: str,
    tag: str,
    commit_sha: str | None,
    action: str,
    asked: str,
    sender: str | None,
) -> Release | Malformed:
    """Return a release of `tag`, or Malformed if git does not allow the tag's name."""
    ref = f"refs/tags/{tag}"
    if not names_a_ref(ref):
        return Malformed(detail="release: git allows no tag of that name")
    return Release(
        repo_full_name=repo_full_name,
        repo_url=repo_url,
        ref=ref,
        commit_sha=commit_sha,
        action=action,
        asked=asked,
        sender=sender or None,
    )
