"""Applies the rules of a source to an event. Pure."""

import re
from typing import Final

from msgspec.structs import replace

from solstice_forge.decisions.rules import BUILT, RuleEvent, RuleSubject, Ruling, decide
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.events import (
    ChangeRequest,
    Command,
    CommandKind,
    Dispatch,
    Event,
    Ignored,
    IgnoreReason,
    Push,
    Release,
    Rerun,
    lacks,
)
from solstice_forge.forges.push_contents import changed_paths, head_message

_SKIP_MARK: Final = re.compile(r"\[(?:skip ci|ci skip)\]")
_SKIP_BYTES: Final = re.compile(_SKIP_MARK.pattern.encode())
QUEUES: Final = "refs/heads/gh-readonly-queue/"
"""Where GitHub's merge queue puts its branches to be tested: gh-readonly-queue/BASE/..."""
BRANCHES: Final = "refs/heads/"


def ruling(
    event: Event, source: WebhookSource, payload: bytes, *, ignores_skip_mark: bool = False
) -> Ruling | Ignored:
    """Return whether and how an event is built.

    `payload` is the delivery's JSON text, or empty when it is not available. The commit's message may ask not to be
    built; `ignores_skip_mark` overrides it.
    """
    # Most webhooks are pushes, and most sources have no rules: these cost one search in a commit's message.
    if isinstance(event, Push) and not source.rules:
        return _skipped(event) if not ignores_skip_mark and _asks_to_skip(event, payload) else BUILT
    if isinstance(event, Command) and event.word is CommandKind.CANCEL:
        # Rules say what is built. A run may be stopped also if the rules have changed since.
        return BUILT
    subject = subject_of(event)
    if lacks(event):
        # Whether it comes from a fork is not known yet: the ruling after the forge's answer decides that.
        subject = replace(subject, stranger=False)
    ruled = decide(subject, source.rules, lambda: changed_paths(source.forge.SOURCE, payload))
    if (
        not ignores_skip_mark
        and isinstance(ruled, Ruling)
        and isinstance(event, Push)
        and _asks_to_skip(event, payload)
    ):
        return _skipped(event)
    return ruled


def subject_of(event: Event) -> RuleSubject:
    """Return the parts of the event that rules look at."""
    match event:
        case Push():
            return _pushed(event)
        case ChangeRequest():
            return RuleSubject(
                event=RuleEvent.CHANGE_REQUEST,
                repository=event.repo_full_name,
                branch=event.base_ref,
                of_change_request=True,
                stranger=event.is_fork is not False,
            )
        case Command():
            return RuleSubject(
                event=RuleEvent.COMMENT,
                repository=event.repo_full_name,
                branch=event.base_ref,
                of_change_request=True,
                stranger=event.is_fork is not False,
                approves=event.word is CommandKind.OK_TO_TEST,
            )
        case Rerun():
            return RuleSubject(
                event=RuleEvent.RERUN,
                repository=event.repo_full_name,
                branch=event.branch if event.number is None else None,
                of_change_request=event.number is not None,
                # GitHub names no branch for a commit that came from a fork.
                stranger=event.branch is None if event.is_fork is None else event.is_fork,
            )
        case Release():
            return RuleSubject(event=RuleEvent.RELEASE, repository=event.repo_full_name)
        case Dispatch():
            return RuleSubject(
                event=RuleEvent.DISPATCH,
                repository=event.repo_full_name,
                branch=_branch(event.ref),
            )


def _pushed(push: Push) -> RuleSubject:
    if push.ref.startswith(QUEUES):
        # .../BASE/pr-7-SHA, and a slash may be part of BASE.
        base = push.ref.removeprefix(QUEUES).rpartition("/")[0]
        return RuleSubject(event=RuleEvent.MERGE_GROUP, repository=push.repo_full_name, branch=base or None)
    kind = RuleEvent.TAG if push.ref_type == "tag" else RuleEvent.PUSH
    return RuleSubject(event=kind, repository=push.repo_full_name, branch=_branch(push.ref))


def _branch(ref: str) -> str | None:
    return ref.removeprefix(BRANCHES) if ref.startswith(BRANCHES) else None


def _asks_to_skip(push: Push, payload: bytes) -> bool:
    """Whether the pushed commit's message asks not to be built.

    Tags are built nevertheless: a person tagged the commit on purpose.
    """
    if not push.ref.startswith(BRANCHES):
        return False
    message = push.message
    # The list of commits is most of a payload: it is read only if the payload holds the mark somewhere.
    if message is None and _SKIP_BYTES.search(payload):
        message = head_message(push.commit_sha, payload)
    return message is not None and _SKIP_MARK.search(message) is not None


def _skipped(push: Push) -> Ignored:
    return Ignored(
        reason=IgnoreReason.SKIP_CI,
        detail="the message of the pushed commit asks for it",
        repo_full_name=push.repo_full_name,
    )
