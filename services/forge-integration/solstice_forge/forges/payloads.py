"""What GitHub, Gitea and Forgejo write alike in their payloads, and how a payload is read at all. Pure.

The models hold the fields we use and no more; what else stands in a payload is skipped unread.
"""

import re
from types import MappingProxyType
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from solstice_forge.events import Ignored, IgnoreReason, Malformed, Push

Sha = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
Number = Annotated[int, Field(ge=1, le=2**53)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]

BUILD_COMMANDS: Final = ("/retest", "/ok-to-test")
"""What a comment on a change request may ask for, at the start of a line."""

WITHOUT_CODE: Final = MappingProxyType(
    {
        "create": (IgnoreReason.PUSH_FOLLOWS, "a push comes for the same branch or tag"),
        "delete": (IgnoreReason.REF_DELETED, "a branch or tag was deleted"),
        "ping": (IgnoreReason.PING, "the webhook works"),
    }
)
"""Events that never ask for anything, and why."""

# git-check-ref-format(1): what no ref may hold; and a part that begins with "-" would be an option to somebody.
_REF: Final = re.compile(r"refs/(heads|tags)/(?!-)[^\x00-\x20\x7f~^:?*\[\\]+")
_SHOWN_PROBLEMS: Final = 3


class Payload(BaseModel):
    """Part of a payload: strict about the type of what is read."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Repository(Payload):
    full_name: Text
    clone_url: Text


class NamedRepository(Payload):
    full_name: Text | None = None


class User(Payload):
    login: str | None = None


class Commit(Payload):
    id: Sha


class PushPayload(Payload):
    ref: Text
    after: Sha
    before: str | None = None
    deleted: bool = False
    head_commit: Commit | None = None
    repository: Repository
    sender: User | None = None


class ChangeRef(Payload):
    """Of an issue that is a pull request."""


class Comment(Payload):
    body: str | None = None


class Issue(Payload):
    pull_request: ChangeRef | None = None


class Envelope(Payload):
    """What is read of an event that is not built at once."""

    action: str | None = None
    repository: NamedRepository | None = None
    issue: Issue | None = None
    is_pull: bool = False
    comment: Comment | None = None

    @property
    def is_command(self) -> bool:
        """Whether this is a new comment on a pull request, with a command of ours."""
        on_pull_request = self.is_pull or (self.issue is not None and self.issue.pull_request is not None)
        text = None if self.comment is None else self.comment.body
        return self.action == "created" and on_pull_request and has_command(text)

    def ignored(self, reason: IgnoreReason, detail: str) -> Ignored:
        return Ignored(
            reason=reason,
            detail=detail,
            repo_full_name=None if self.repository is None else self.repository.full_name,
        )


P = TypeVar("P", bound=Payload)


def read(model: type[P], payload: bytes) -> P | Malformed:
    """The payload as `model`, or what is wrong with it; never raises, whatever the bytes."""
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        # Without the input: it may be long, hostile, or somebody's secret.
        problems = [
            f"{'.'.join(str(part) for part in problem['loc']) or 'payload'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        return Malformed(detail="; ".join(problems[:_SHOWN_PROBLEMS]))


def read_push(payload: bytes) -> Push | Ignored | Malformed:
    """A push of GitHub, Gitea or Forgejo.

    For an annotated tag, `after` is the tag object and `head_commit` the commit it points at.
    """
    push = read(PushPayload, payload)
    if isinstance(push, Malformed):
        return push
    peeled = push.head_commit.id if push.head_commit and push.ref.startswith("refs/tags/") else push.after
    return push_event(
        repo_full_name=push.repository.full_name,
        repo_url=push.repository.clone_url,
        ref=push.ref,
        commit_sha=None if push.deleted or is_zero(push.after) else peeled,
        before=push.before,
        sender=push.sender.login if push.sender else None,
    )


def push_event(
    *,
    repo_full_name: str,
    repo_url: str,
    ref: str,
    commit_sha: str | None,
    before: str | None,
    sender: str | None,
) -> Push | Ignored | Malformed:
    """What a push means; `commit_sha` is None when the ref was deleted."""
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
        before_sha=None if not before or is_zero(before) else before,
        sender=sender or None,
    )


def is_zero(sha: str) -> bool:
    """Whether this is git's id of nothing (40 zeros, or 64 in a SHA-256 repository)."""
    return not sha.strip("0")


def has_command(text: str | None) -> bool:
    """Whether a line of the comment starts with a command of ours."""
    return any(line.strip().split(" ")[0] in BUILD_COMMANDS for line in (text or "").splitlines())
