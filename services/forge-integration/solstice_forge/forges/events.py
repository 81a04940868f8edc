"""Events of all forges as values, with the same names for every forge. Pure values."""

from enum import StrEnum
from typing import Final, Literal

from msgspec.json import Decoder, encode

from solstice_common.values.value import Value


class IgnoreReason(StrEnum):
    """Why a genuine delivery asks for nothing; a closed list, for answers, metrics and logs."""

    REF_DELETED = "ref_deleted"
    """A branch or tag is gone: there is no commit to build."""
    NOT_A_BRANCH_OR_TAG = "not_a_branch_or_tag"
    PUSH_FOLLOWS = "push_follows"
    """A new branch or tag: the forge sends a push for it as well, and that one is built."""
    NO_NEW_CODE = "no_new_code"
    """The change request was closed, labelled, reviewed, ...: its head commit is unchanged."""
    NO_COMMAND = "no_command"
    """A comment without one of our commands, or not on a change request."""
    PING = "ping"
    NOT_A_CODE_EVENT = "not_a_code_event"
    """Bookkeeping, or an event made by CI itself: building it could cause an endless loop."""
    NO_RULE = "no_rule"
    """The source has rules, and none matches this event of this repository."""
    BRANCH_NOT_BUILT = "branch_not_built"
    """The rule for it names other branches."""
    PATHS_NOT_BUILT = "paths_not_built"
    """The rule for it names none of the changed paths."""
    FORK_NOT_BUILT = "fork_not_built"
    """The rule for it does not build code that comes, or may come, from a fork."""
    SKIP_CI = "skip_ci"
    """The message of the pushed commit holds `[skip ci]` or `[ci skip]`."""
    NOT_ALLOWED = "not_allowed"
    """The author of the command may not give it."""
    CHANGE_CLOSED = "change_closed"
    """The change request is closed or merged: no command builds it any more."""
    NOT_AT_FORGE = "not_at_forge"
    """The forge does not know the tag, branch or change request that the delivery names."""
    FORGE_REFUSED = "forge_refused"
    """The forge refuses to answer what the delivery lacks."""
    NO_ACCESS = "no_access"
    """The source has no URL or no token to ask the forge with."""
    TOO_LATE = "too_late"
    """The forge could not be asked in time."""
    UNUSABLE = "unusable"
    """No request can be made of the forge's answer."""


class LackingField(StrEnum):
    """What a payload may lack; the forge is asked for it after the answer."""

    COMMIT = "commit_sha"
    IS_FORK = "is_fork"
    PERMISSION = "author_permission"
    """Whether the author of a command may give it."""


class CommandKind(StrEnum):
    """A command in a comment on a change request."""

    RETEST = "/retest"
    """Build the head commit again; allowed for people who may write and the change request's author."""
    OK_TO_TEST = "/ok-to-test"
    """Build the reviewed head commit; allowed only for people who may write."""
    CANCEL = "/cancel"
    """End all runs of the change request; allowed for people who may write and its author."""


OF_AUTHORS: Final = frozenset({CommandKind.RETEST, CommandKind.CANCEL})
"""Commands that the author of the change request may give, too."""


class Push(Value, frozen=True, kw_only=True):
    """A branch or tag now points at `commit_sha` (the peeled commit, for an annotated tag)."""

    repo_full_name: str
    repo_url: str
    ref: str
    """The full ref: `refs/heads/main`, `refs/tags/v1`."""
    commit_sha: str
    before_sha: str | None
    """None for a new ref."""
    sender: str | None
    default_branch: str | None = None
    """The repository's, without `refs/heads/`; None when the payload does not name it."""
    message: str | None = None
    """The commit's message; None when it must be looked for among all pushed commits."""
    occurred_at: float | None = None
    """By the forge's clock, in seconds since the epoch; None when the payload gives no time."""

    @property
    def ref_type(self) -> Literal["branch", "tag"]:
        return "tag" if self.ref.startswith("refs/tags/") else "branch"


class ChangeRequest(Value, frozen=True, kw_only=True):
    """A pull or merge request has a new head commit."""

    repo_full_name: str
    """The base repository, where the status goes."""
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
    """None when the payload does not say; it then counts as untrusted."""
    head_repo_full_name: str | None
    head_repo_url: str | None
    draft: bool | None
    sender: str | None
    before_sha: str | None = None
    """The previous head commit, where the payload names it: deliveries may come in any order."""
    occurred_at: float | None = None
    """As Push.occurred_at."""


class Rerun(Value, frozen=True, kw_only=True, tag="rerun"):
    """A person asked the forge to run a commit's check again."""

    repo_full_name: str
    repo_url: str
    commit_sha: str
    branch: str | None
    """The commit's branch according to the forge; None for a fork's."""
    number: int | None
    """The number of a change request with this head, when the payload names one."""
    check: str | None
    """The name of the check to run again; None: all of them."""
    action: str
    sender: str | None
    ref: str | None = None
    """The payload names none: a branch of that name may be a fork's, and may have moved."""
    is_fork: bool | None = None
    """Whether the commit may be outside `branch`; None counts as a fork's.

    The payload never says it. If the source can be asked, the forge is asked.
    """


class Release(Value, frozen=True, kw_only=True, tag="release"):
    """A release was published."""

    repo_full_name: str
    repo_url: str
    ref: str
    """The ref of its tag."""
    commit_sha: str | None
    """None: it must be looked up."""
    action: str
    asked: str
    """What distinguishes this publication from another one of the same tag."""
    sender: str | None

    @property
    def needs(self) -> tuple[LackingField, ...]:
        return (LackingField.COMMIT,) if self.commit_sha is None else ()


class Dispatch(Value, frozen=True, kw_only=True, tag="dispatch"):
    """A person or a program asked for a branch or tag to be built.

    The forge allows this only to accounts that may write.
    """

    repo_full_name: str
    repo_url: str
    ref: str
    commit_sha: str | None
    """None: it must be looked up."""
    action: str | None
    """The sender's own word for it, where there is one."""
    workflow_path: str | None
    """The workflow it was meant for, which may be one of the forge's own."""
    sender: str | None

    @property
    def needs(self) -> tuple[LackingField, ...]:
        return (LackingField.COMMIT,) if self.commit_sha is None else ()


class Command(Value, frozen=True, kw_only=True, tag="command"):
    """A person wrote a command under a change request.

    Their rights must always be looked up.
    """

    word: CommandKind
    repo_full_name: str
    """The base repository."""
    repo_url: str
    number: int
    ref: str
    """As ChangeRequest.ref."""
    action: str | None
    commit_sha: str | None
    """The head commit; None: it must be looked up."""
    is_fork: bool | None
    base_ref: str | None = None
    head_ref: str | None = None
    head_repo_url: str | None = None
    asked: str
    """The comment's id: a second comment is a second request."""
    by_author: bool = False
    """Whether its author also made the change request."""
    permitted: bool = False
    """Whether the author's rights were looked up and are sufficient."""
    sender: str | None
    sender_id: int | None
    """The forge's number for the sender, where its API needs the number."""
    occurred_at: float | None = None
    """As Push.occurred_at."""

    @property
    def needs(self) -> tuple[LackingField, ...]:
        # A cancel applies to all commits of the change request, and their origin does not matter.
        builds = self.word is not CommandKind.CANCEL
        unknown = (
            (LackingField.COMMIT, builds and self.commit_sha is None),
            (LackingField.IS_FORK, builds and self.is_fork is None),
            (LackingField.PERMISSION, not self.permitted and (builds or not self.by_author)),
        )
        return tuple(need for need, missing in unknown if missing)


Incomplete = Rerun | Release | Dispatch | Command
"""Events whose missing parts the forge can give; with `needs` they ask for nothing yet."""


class Ignored(Value, frozen=True, kw_only=True):
    """A genuine delivery that asks for nothing; `detail` is for people."""

    reason: IgnoreReason
    detail: str
    repo_full_name: str | None = None


class Malformed(Value, frozen=True, kw_only=True):
    """A genuine delivery that cannot be read: the forge gets 400 and the sentence."""

    detail: str


Event = Push | ChangeRequest | Rerun | Release | Dispatch | Command


def lacks(event: Event) -> tuple[LackingField, ...]:
    """Return what to look up at the forge before the event can become a request."""
    return event.needs if isinstance(event, Release | Dispatch | Command) else ()


def encode_lacking(event: Incomplete) -> bytes:
    """Return the event as it is stored until the forge is asked; `decode_lacking` reads it."""
    return encode(event)


def decode_lacking(stored: bytes) -> Incomplete:
    """Read what `encode_lacking` wrote, perhaps in another version; ValueError if it cannot be read."""
    return _LACKING.decode(stored)


_LACKING: Final[Decoder[Incomplete]] = Decoder(Incomplete)
