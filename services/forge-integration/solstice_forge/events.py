"""What a forge can say, in our words, whatever forge it was. Pure values."""

from dataclasses import dataclass
from typing import Literal


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
    """A genuine delivery that asks for nothing. `reason` is one word of a closed list, `detail` for people."""

    reason: str
    detail: str
    repo_full_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A genuine delivery that cannot be read: the forge gets 400 and the sentence."""

    detail: str


Event = Push | ChangeRequest
