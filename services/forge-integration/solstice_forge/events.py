"""What a forge can say, in our words, whatever forge it was. Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class IgnoreReason(StrEnum):
    """Why a genuine delivery asks for nothing; a closed list, for answers, metrics and logs."""

    REF_DELETED = "ref_deleted"
    """A branch or tag is gone: there is no commit to build."""
    NOT_A_BRANCH_OR_TAG = "not_a_branch_or_tag"
    PUSH_FOLLOWS = "push_follows"
    """A new branch or tag: the forge sends a push for it as well, and that one is built."""
    NO_NEW_CODE = "no_new_code"
    """The change request was closed, labelled, reviewed, ...: its head commit is the same as before."""
    NO_COMMAND = "no_command"
    """A comment without a command of ours, or not on a change request."""
    PING = "ping"
    NOT_A_CODE_EVENT = "not_a_code_event"
    """Bookkeeping, or made by CI itself: acting on it could go round for ever."""
    NOT_SUPPORTED_YET = "not_supported_yet"
    """It could ask for a run, but this version does not act on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A branch or tag now points at `commit_sha` (the peeled commit, for an annotated tag)."""

    repo_full_name: str
    repo_url: str
    ref: str
    """Full: `refs/heads/main`, `refs/tags/v1`."""
    commit_sha: str
    before_sha: str | None
    """None for a new ref."""
    sender: str | None

    @property
    def ref_type(self) -> Literal["branch", "tag"]:
        return "tag" if self.ref.startswith("refs/tags/") else "branch"

    @property
    def ref_name(self) -> str:
        """`main`, `v1`."""
        return self.ref.split("/", 2)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """A pull or merge request has a new head commit."""

    repo_full_name: str
    """The base repository: that is where the status goes."""
    repo_url: str
    number: int
    action: str
    """The forge's own word."""
    ref: str
    """The forge's ref of the head commit in the base repository: `refs/pull/7/head`, `refs/merge-requests/7/head`."""
    commit_sha: str
    base_ref: str | None
    head_ref: str | None
    is_fork: bool | None
    """None when the payload does not tell: to be treated as untrusted."""
    head_repo_full_name: str | None
    head_repo_url: str | None
    draft: bool | None
    sender: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A genuine delivery that asks for nothing; `detail` is for people."""

    reason: IgnoreReason
    detail: str
    repo_full_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A genuine delivery that cannot be read: the forge gets 400 and the sentence."""

    detail: str


Event = Push | ChangeRequest
