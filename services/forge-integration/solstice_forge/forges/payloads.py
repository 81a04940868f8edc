"""Parses payloads, and the parts that GitHub, Gitea and Forgejo write alike. Pure.

The models hold only the fields that we use; other fields of a payload are skipped.
"""

import re
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Annotated, Final, TypeVar

from msgspec import DecodeError, Meta, Struct
from msgspec.json import Decoder

from solstice_forge.forges.events import Ignored, IgnoreReason, Malformed, Push

Sha = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]
Number = Annotated[int, Meta(ge=1, le=2**53)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]

WITHOUT_CODE: Final = MappingProxyType(
    {
        "create": (IgnoreReason.PUSH_FOLLOWS, "a push comes for the same branch or tag"),
        "delete": (IgnoreReason.REF_DELETED, "a branch or tag was deleted"),
        "ping": (IgnoreReason.PING, "the webhook works"),
    }
)
"""Events that never ask for anything, and why."""

# git-check-ref-format(1): what no ref may hold; and a command could take a part that begins with "-" as an option.
_REF: Final = re.compile(r"refs/(heads|tags)/(?!-)[^\x00-\x20\x7f~^:?*\[\\]+")
_SHA: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LAST_SECOND: Final = 2**33
"""A limit far in the future; a larger number is no time in seconds."""
_LONGEST_NAME: Final = 255
"""The limit of the messages."""


class Payload(Struct, frozen=True, kw_only=True, gc=False):
    """A part of a payload, strict about the types of its fields."""


class RepositoryPayload(Payload, frozen=True, kw_only=True):
    full_name: Text
    clone_url: Text


class PushedRepository(RepositoryPayload, frozen=True, kw_only=True):
    default_branch: str | None = None
    pushed_at: int | str | None = None
    """GitHub's: the moment of the push, in seconds since the epoch."""


class NamedRepository(Payload, frozen=True, kw_only=True):
    full_name: Text | None = None


class AccountPayload(Payload, frozen=True, kw_only=True):
    login: str | None = None


class HeadCommitPayload(Payload, frozen=True, kw_only=True):
    id: Sha
    message: str | None = None


class PushPayload(Payload, frozen=True, kw_only=True):
    ref: Text
    after: Sha
    before: str | None = None
    deleted: bool = False
    head_commit: HeadCommitPayload | None = None
    repository: PushedRepository
    sender: AccountPayload | None = None


class ChangeRef(Payload, frozen=True, kw_only=True):
    """The part of an issue that is a pull request."""


class Comment(Payload, frozen=True, kw_only=True):
    body: str | None = None


class Issue(Payload, frozen=True, kw_only=True):
    pull_request: ChangeRef | None = None


class EventEnvelope(Payload, frozen=True, kw_only=True):
    """The fields that we read of an event that is not built at once."""

    action: str | None = None
    repository: NamedRepository | None = None
    issue: Issue | None = None
    is_pull: bool = False
    comment: Comment | None = None

    @property
    def remark(self) -> str | None:
        """Return the text of a new comment on a pull request; None for other events."""
        on_pull_request = self.is_pull or (self.issue is not None and self.issue.pull_request is not None)
        is_new = self.action == "created" and on_pull_request and self.comment is not None
        return self.comment.body if is_new and self.comment is not None else None

    def ignored(self, reason: IgnoreReason, detail: str) -> Ignored:
        return Ignored(
            reason=reason,
            detail=detail,
            repo_full_name=None if self.repository is None else self.repository.full_name,
        )


P = TypeVar("P", bound=Payload)


def read(model: type[P], payload: bytes) -> P | Malformed:
    """Return the payload as `model`, or what is wrong with it.

    It never raises, for any bytes.
    """
    try:
        document: P = _decoder(model).decode(payload)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        # They name the place and what was expected, never the input: it may be hostile or a secret.
        return Malformed(detail=str(error))
    return document


@cache
def _decoder(model: type[P]) -> "Decoder[P]":
    return Decoder(model)


def read_push(payload: bytes) -> Push | Ignored | Malformed:
    """Read a push of GitHub, Gitea or Forgejo.

    For an annotated tag, `after` is the tag object and `head_commit` the commit it points at.
    """
    push = read(PushPayload, payload)
    if isinstance(push, Malformed):
        return push
    head = push.head_commit
    commit_sha = head.id if head and push.ref.startswith("refs/tags/") else push.after
    return push_event(
        repo_full_name=push.repository.full_name,
        repo_url=push.repository.clone_url,
        ref=push.ref,
        commit_sha=None if push.deleted or is_zero(push.after) else commit_sha,
        before=push.before,
        sender=push.sender.login if push.sender else None,
        default_branch=push.repository.default_branch,
        occurred_at=push.repository.pushed_at,
        message=head.message if head and head.id == commit_sha else None,
    )


def push_event(
    *,
    repo_full_name: str,
    repo_url: str,
    ref: str,
    commit_sha: str | None,
    before: str | None,
    sender: str | None,
    default_branch: str | None,
    occurred_at: int | str | None = None,
    message: str | None = None,
) -> Push | Ignored | Malformed:
    """Return what a push means; `commit_sha` is None when the ref was deleted."""
    if not ref.startswith(("refs/heads/", "refs/tags/")):
        return Ignored(
            reason=IgnoreReason.NOT_A_BRANCH_OR_TAG,
            detail=f"{ref} is neither a branch nor a tag",
            repo_full_name=repo_full_name,
        )
    if not _REF.fullmatch(ref):
        return Malformed(detail="ref: git allows no such name")
    if commit_sha is None:
        return Ignored(
            reason=IgnoreReason.REF_DELETED, detail=f"{ref} was deleted", repo_full_name=repo_full_name
        )
    return Push(
        repo_full_name=repo_full_name,
        repo_url=repo_url,
        ref=ref,
        commit_sha=commit_sha,
        before_sha=known_commit(before),
        sender=sender or None,
        default_branch=default_branch if _names_a_branch(default_branch) else None,
        message=message,
        occurred_at=float(occurred_at) if type(occurred_at) is int and occurred_at < _LAST_SECOND else None,
    )


def _names_a_branch(name: str | None) -> bool:
    """Whether this can be a branch's name; if not, the push is read without it."""
    return name is not None and len(name) <= _LONGEST_NAME and bool(_REF.fullmatch(f"refs/heads/{name}"))


def names_a_ref(ref: str) -> bool:
    """Whether this is a valid full name of a branch or tag.

    Git allows it, and it is short enough for our messages.
    """
    return len(ref) <= _LONGEST_NAME and bool(_REF.fullmatch(ref))


def known_commit(sha: str | None) -> str | None:
    """Return the commit id; None for git's id of nothing or an invalid one.

    An invalid one causes no refusal.
    """
    return sha if sha and _SHA.fullmatch(sha) and not is_zero(sha) else None


def moment_of(text: str | None) -> float | None:
    """Return a forge's time in seconds since the epoch; None when it is no time.

    Forges write RFC 3339, or GitLab's `2026-01-31 12:00:00 UTC`.
    """
    try:
        moment = datetime.fromisoformat((text or "").replace(" UTC", "+00:00"))
        return moment.timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def is_zero(sha: str) -> bool:
    """Whether this is git's id of nothing (40 zeros, or 64 in a SHA-256 repository)."""
    return not sha.strip("0")
