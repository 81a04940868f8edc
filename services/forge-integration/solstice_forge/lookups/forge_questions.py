"""Chooses the questions that complete an event, and reads the answers. Pure.

(event, the forge's answers) -> an event that can be planned, or why not. Rights come first: a person who may not ask
for a run causes no further questions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from solstice_forge.forges.events import (
    OF_AUTHORS,
    Command,
    CommandKind,
    Dispatch,
    Ignored,
    IgnoreReason,
    Incomplete,
    Release,
    Rerun,
    lacks,
)
from solstice_forge.remote import github_calls
from solstice_forge.remote.protocol import (
    CallPostponed,
    CallRefused,
    ChangeRequestHead,
    ForgeAccount,
    ForgeCall,
    ForgeDialect,
)

T = TypeVar("T")

GIVE_UP_SECONDS: Final = 24 * 3600.0
"""How long the forge may be unreachable: after that the person has probably asked again."""
APPROVAL_SECONDS: Final = 120.0
"""How long `/ok-to-test` applies to the current head.

It approves the commit that the person looked at. Where the forge does not name that commit the head is taken, which may
be another one later.
"""
_NOT_THERE: Final = frozenset({404, 410, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeQuestion(Generic[T]):
    """What to ask the forge next, and how its answer changes the event."""

    call: ForgeCall[T]
    answered: Callable[[T], Incomplete | Ignored]


def next_question(event: Incomplete, dialect: ForgeDialect) -> ForgeQuestion[Any] | Incomplete | Ignored:
    """Return the next question, or the event when it lacks nothing more."""
    if isinstance(event, Rerun):
        return _of_rerun(event) if event.is_fork is None else event
    if not lacks(event):
        return event
    match event:
        case Release() | Dispatch():
            return ForgeQuestion(
                call=dialect.find_commit(event.repo_full_name, event.ref),
                answered=lambda sha: replace(event, commit_sha=sha),
            )
        case Command():
            return _of_command(event, dialect)


def _of_rerun(rerun: Rerun) -> ForgeQuestion[bool] | Rerun:
    """Ask whose commit it is.

    Only GitHub has re-runs, and it names no branch for a fork's.
    """
    if rerun.branch is None:
        return replace(rerun, is_fork=True)
    return ForgeQuestion(
        call=github_calls.is_on_branch(rerun.repo_full_name, rerun.commit_sha, rerun.branch),
        answered=lambda is_on: replace(rerun, is_fork=not is_on),
    )


def _of_command(command: Command, dialect: ForgeDialect) -> ForgeQuestion[Any] | Incomplete | Ignored:
    if command.permitted:
        return ForgeQuestion(
            call=dialect.find_head(command.repo_full_name, command.number),
            answered=lambda head: _with_head(command, head),
        )
    if command.word in OF_AUTHORS and command.by_author:
        return next_question(replace(command, permitted=True), dialect)
    account = ForgeAccount(login=command.sender, id=command.sender_id)
    call = dialect.may_write(command.repo_full_name, account)
    if call is None:
        return _not_allowed(command, "the delivery does not name its author")
    return ForgeQuestion(call=call, answered=lambda may: _with_rights(command, may=may))


def _with_rights(command: Command, *, may: bool) -> Incomplete | Ignored:
    if may:
        return replace(command, permitted=True)
    also = " or made the change request" if command.word in OF_AUTHORS else ""
    return _not_allowed(command, f"{command.word} is for who may push to the repository{also}")


def _with_head(command: Command, head: ChangeRequestHead) -> Incomplete | Ignored:
    """Return the command with the forge's head.

    What the delivery named stays: the author of the command saw that.
    """
    if not head.is_open:
        return ignored(command, IgnoreReason.CHANGE_CLOSED, f"#{command.number} is not open any more")
    return replace(
        command,
        commit_sha=command.commit_sha or head.commit_sha,
        # What is unknown now stays unknown.
        is_fork=head.is_fork is not False if command.is_fork is None else command.is_fork,
        base_ref=command.base_ref or head.base_ref,
        head_ref=command.head_ref or head.head_ref,
        head_repo_url=command.head_repo_url or head.head_repo_url,
    )


def refused(event: Incomplete, never: CallRefused) -> Ignored:
    """Return why the event is ignored: the forge refuses to answer."""
    if never.status in _NOT_THERE:
        return ignored(event, IgnoreReason.NOT_AT_FORGE, f"the forge answered {never.status} {never.detail}")
    words = f"{never.status} {never.detail}" if never.status else never.detail
    return ignored(event, IgnoreReason.FORGE_REFUSED, f"the forge refuses what the delivery lacks: {words}")


def without_access(event: Incomplete, source_name: str) -> Ignored:
    """Return why the event is ignored: there is no forge to ask."""
    missing = ", ".join(need.value for need in lacks(event))
    return ignored(
        event,
        IgnoreReason.NO_ACCESS,
        f"the forge would have to be asked for {missing}: give the source {source_name} a url and a token",
    )


def too_late(event: Incomplete, age_seconds: float, why: CallPostponed | None) -> Ignored | None:
    """Return why the event is ignored if it is too late to ask; None otherwise.

    `why` is the last result that the forge gave.
    """
    words = f": {why.why}" if why else ""
    if isinstance(event, Command) and event.word is CommandKind.OK_TO_TEST and event.commit_sha is None:
        if age_seconds <= APPROVAL_SECONDS:
            return None
        return ignored(
            event,
            IgnoreReason.TOO_LATE,
            f"the forge could not be asked within {APPROVAL_SECONDS:.0f} s which commit was meant; "
            f"look at it, and comment again{words}",
        )
    if age_seconds <= GIVE_UP_SECONDS:
        return None
    return ignored(
        event,
        IgnoreReason.TOO_LATE,
        f"the forge could not be asked for {GIVE_UP_SECONDS / 3600:.0f} hours{words}",
    )


def ignored(event: Incomplete, reason: IgnoreReason, detail: str) -> Ignored:
    return Ignored(reason=reason, detail=detail, repo_full_name=event.repo_full_name)


def _not_allowed(command: Command, detail: str) -> Ignored:
    return ignored(command, IgnoreReason.NOT_ALLOWED, detail)
