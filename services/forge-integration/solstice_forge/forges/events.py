"""What a forge can say, in our words, whatever forge it was. Pure values."""

from enum import StrEnum
from typing import Final, Literal

from msgspec.json import Decoder, encode

from solstice_common.values import Value


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
    NO_RULE = "no_rule"
    """The source has rules, and none is for this event of this repository."""
    BRANCH_NOT_BUILT = "branch_not_built"
    """The rule for it names other branches."""
    PATHS_NOT_BUILT = "paths_not_built"
    """The rule for it names other paths than those that changed."""
    FORK_NOT_BUILT = "fork_not_built"
    """The rule for it builds nothing that comes, or may come, from a fork."""
    SKIP_CI = "skip_ci"
    """The message of the pushed commit holds `[skip ci]` or `[ci skip]`."""
    NOT_ALLOWED = "not_allowed"
    """Who wrote the command may not give it."""
    CHANGE_CLOSED = "change_closed"
    """The change request is closed or merged: a command builds it no more."""
    NOT_AT_FORGE = "not_at_forge"
    """The forge knows nothing of what the delivery names: its tag, its branch, its change request."""
    FORGE_REFUSED = "forge_refused"
    """The forge does not tell us what the delivery lacks."""
    NO_ACCESS = "no_access"
    """The forge would have to be asked, and the source has no URL or no token for that."""
    TOO_LATE = "too_late"
    """The forge could not be asked in time."""
    UNUSABLE = "unusable"
    """What the forge told cannot be made a request."""


class Need(StrEnum):
    """What a payload may lack and the forge is asked for, after the delivery was answered."""

    COMMIT = "commit_sha"
    IS_FORK = "is_fork"
    PERMISSION = "author_permission"
    """Whether the author of a command may give it."""


class CommentCommand(StrEnum):
    """A command in a comment on a change request."""

    RETEST = "/retest"
    """Build the head commit again; from who may write, or who made the change request."""
    OK_TO_TEST = "/ok-to-test"
    """The head commit was looked at and may be built; only from who may write."""
    CANCEL = "/cancel"
    """What runs or waits for the change request is to end; from who may write, or who made the change request."""


OF_AUTHORS: Final = frozenset({CommentCommand.RETEST, CommentCommand.CANCEL})
"""What whoever made the change request may ask for, too."""


class Push(Value, frozen=True, kw_only=True):
    """A branch or tag now points at `commit_sha` (the peeled commit, for an annotated tag)."""

    repo_full_name: str
    repo_url: str
    ref: str
    """Full: `refs/heads/main`, `refs/tags/v1`."""
    commit_sha: str
    before_sha: str | None
    """None for a new ref."""
    sender: str | None
    default_branch: str | None = None
    """The repository's, without `refs/heads/`; None when the payload does not tell."""
    message: str | None = None
    """Of the commit; None when it has to be looked for among all that were pushed."""
    occurred_at: float | None = None
    """By the forge's clock, in seconds since the epoch; None when the payload does not tell."""

    @property
    def ref_type(self) -> Literal["branch", "tag"]:
        return "tag" if self.ref.startswith("refs/tags/") else "branch"


class ChangeRequest(Value, frozen=True, kw_only=True):
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
    before_sha: str | None = None
    """The head commit before, where the payload tells: deliveries may come in any order."""
    occurred_at: float | None = None
    """As of a push."""


class Rerun(Value, frozen=True, kw_only=True, tag="rerun"):
    """A person asked at the forge for a check of a commit to be run again."""

    repo_full_name: str
    repo_url: str
    commit_sha: str
    branch: str | None
    """What the forge takes for the commit's branch; None for a fork's."""
    number: int | None
    """Of a change request with this head, when the payload names one."""
    check: str | None
    """The name of the one check that is asked for; None: all of them."""
    action: str
    sender: str | None
    ref: str | None = None
    """The payload has none: a branch of that name may be a fork's, and may have moved on."""
    is_fork: bool | None = None
    """Whether the commit is not known to be of `branch`; the payload never tells, and where there is somebody to ask, the
    forge is asked. None counts as a fork's."""


class Release(Value, frozen=True, kw_only=True, tag="release"):
    """A release was published."""

    repo_full_name: str
    repo_url: str
    ref: str
    """Of its tag."""
    commit_sha: str | None
    """None: to be looked up."""
    action: str
    asked: str
    """What makes this publication unlike another one of the same tag."""
    sender: str | None

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need.COMMIT,) if self.commit_sha is None else ()


class Dispatch(Value, frozen=True, kw_only=True, tag="dispatch"):
    """A person or a program asked for a branch or tag to be built; the forge lets only who may write."""

    repo_full_name: str
    repo_url: str
    ref: str
    commit_sha: str | None
    """None: to be looked up."""
    action: str | None
    """The word of whoever dispatched it, where there is one."""
    workflow_path: str | None
    """The workflow it was meant for, which may be one of the forge's own."""
    sender: str | None

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need.COMMIT,) if self.commit_sha is None else ()


class Command(Value, frozen=True, kw_only=True, tag="command"):
    """Somebody wrote a command under a change request; whether they may is always to be looked up."""

    word: CommentCommand
    repo_full_name: str
    """The base repository."""
    repo_url: str
    number: int
    ref: str
    """As of a change request."""
    action: str | None
    commit_sha: str | None
    """The head commit; None: to be looked up."""
    is_fork: bool | None
    base_ref: str | None = None
    head_ref: str | None = None
    head_repo_url: str | None = None
    asked: str
    """The comment's id: a second comment is a second request."""
    by_author: bool = False
    """Who wrote it made the change request as well."""
    permitted: bool = False
    """The author's rights were looked up, and are enough."""
    sender: str | None
    sender_id: int | None
    """The forge's number for the sender, where it asks by that."""
    occurred_at: float | None = None
    """As of a push."""

    @property
    def needs(self) -> tuple[Need, ...]:
        # A cancel is about all commits of the change request, and whose they are does not matter.
        builds = self.word is not CommentCommand.CANCEL
        unknown = (
            (Need.COMMIT, builds and self.commit_sha is None),
            (Need.IS_FORK, builds and self.is_fork is None),
            (Need.PERMISSION, not self.permitted and (builds or not self.by_author)),
        )
        return tuple(need for need, missing in unknown if missing)


Incomplete = Rerun | Release | Dispatch | Command
"""Events of which the forge can tell more than the payload; those that have `needs` ask for nothing without it."""


class Ignored(Value, frozen=True, kw_only=True):
    """A genuine delivery that asks for nothing; `detail` is for people."""

    reason: IgnoreReason
    detail: str
    repo_full_name: str | None = None


class Malformed(Value, frozen=True, kw_only=True):
    """A genuine delivery that cannot be read: the forge gets 400 and the sentence."""

    detail: str


Event = Push | ChangeRequest | Rerun | Release | Dispatch | Command


def lacks(event: Event) -> tuple[Need, ...]:
    """What must be looked up at the forge before the event can become a request."""
    return event.needs if isinstance(event, Release | Dispatch | Command) else ()


def encode_lacking(event: Incomplete) -> bytes:
    """The event as it is kept until the forge was asked; `decode_lacking` reads it."""
    return encode(event)


def decode_lacking(stored: bytes) -> Incomplete:
    """What `encode_lacking` wrote, perhaps another version's; raises ValueError when it cannot be read."""
    return _LACKING.decode(stored)


_LACKING: Final[Decoder[Incomplete]] = Decoder(Incomplete)
