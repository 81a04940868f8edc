"""Which of two pushes came first, in any order of delivery. Pure.

The pushes are to one branch, or of one change request. The links between deliveries count first, then git's history of
their commits, then the times of the requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from solstice_orchestrator.superseding.seniority import Seniority


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A push as its delivery describes it."""

    run_id: str
    commit_sha: str
    before_sha: str | None
    """The commit before the push; None: there was none, or the delivery does not say."""
    seniority: Seniority


class CommitPair(Protocol):
    """The commits of a push."""

    @property
    def commit_sha(self) -> str: ...

    @property
    def before_sha(self) -> str | None: ...


class PushOrder(Enum):
    """How a push relates to the newest push known before it."""

    NEWER = "newer"
    OLDER = "older"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderQuestion:
    """A question for git: did a push come before or after the newest one?"""

    commit_sha: str
    before_sha: str | None
    newest_sha: str


OrderAnswers = Mapping[OrderQuestion, PushOrder | None]
"""Answers so far; None: git could not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAncestry:
    """What git says about the commits of a question."""

    now: str | None
    """The commit at the ref now; None: the ref is gone, or has no name."""
    in_newest: bool = False
    """The push's commit is an ancestor of the newest one."""
    has_newest: bool = False
    """The newest one is an ancestor of the push's commit."""
    goes_back: bool = False
    """The push removed commits: its commit is an ancestor of the one before it."""


def push_order(
    push: Push, newest: Push, known: Sequence[CommitPair], answers: OrderAnswers | None
) -> PushOrder | OrderQuestion:
    """Whether the push is newer than the newest so far, or a question for git.

    `known` are pushes of the same branch, for the links between them. Without `answers` there is no question.
    """
    if push.commit_sha != newest.commit_sha:
        order = _by_links(push, newest, known)
        if order is None and answers is not None:
            question = OrderQuestion(
                commit_sha=push.commit_sha, before_sha=push.before_sha, newest_sha=newest.commit_sha
            )
            if question not in answers:
                return question
            order = answers[question]
        order = order or _one_of(push.before_sha == newest.commit_sha, newest.before_sha == push.commit_sha)
        if order is not None:
            return order
    return PushOrder.NEWER if push.seniority > newest.seniority else PushOrder.OLDER


def answer(question: OrderQuestion, history: CommitAncestry) -> PushOrder | None:
    """Return the answer from git's history; None: it does not decide.

    The commit at the ref now is the newest of all. Else a commit that is in the history of the other came first, unless
    the push moved the branch back to it.
    """
    if history.now == question.commit_sha:
        return PushOrder.NEWER
    if history.now == question.newest_sha:
        return PushOrder.OLDER
    return _one_of(history.has_newest, history.in_newest and not history.goes_back)


def _by_links(push: Push, newest: Push, known: Sequence[CommitPair]) -> PushOrder | None:
    links: dict[str, set[str]] = {}
    each: CommitPair
    for each in (*known, newest, push):
        if each.before_sha is not None:
            links.setdefault(each.commit_sha, set()).add(each.before_sha)
    return _one_of(
        newest.commit_sha in _earlier(push.commit_sha, links),
        push.commit_sha in _earlier(newest.commit_sha, links),
    )


def _earlier(commit_sha: str, links: Mapping[str, set[str]]) -> set[str]:
    """The commits that the branch had before this one, as far as the pushes show."""
    earlier: set[str] = set()
    todo = [commit_sha]
    while todo:
        fresh = links.get(todo.pop(), set()) - earlier
        earlier |= fresh
        todo += fresh
    return earlier


def _one_of(newer: bool, older: bool) -> PushOrder | None:  # noqa: FBT001  two signs, of which each alone means something
    """The order that one sign shows; None for both: the branch moved back and forth."""
    if newer == older:
        return None
    return PushOrder.NEWER if newer else PushOrder.OLDER
