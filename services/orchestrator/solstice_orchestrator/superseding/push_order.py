"""Which of two pushes to one branch, or of one change request, came first, whichever was told first. Pure.

What the deliveries say of each other goes first, then what git says of their commits, then when they were asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from solstice_orchestrator.domain.seniority import Seniority


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What is known of one push."""

    run_id: str
    commit_sha: str
    before_sha: str | None
    """What it says was there before; None: nothing, or it does not say."""
    seniority: Seniority


class PushOrder(Enum):
    """Of a push to the newest that was known before it."""

    NEWER = "newer"
    OLDER = "older"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderQuestion:
    """What only the repository can tell: whether a push came before or after the newest one."""

    commit_sha: str
    before_sha: str | None
    newest_sha: str


OrderAnswers = Mapping[OrderQuestion, PushOrder | None]
"""What was asked already; None: the repository could not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAncestry:
    """What the repository says."""

    now: str | None
    """What the ref points at; None: it is gone, or has no name."""
    in_newest: bool = False
    """The push's commit is an ancestor of the newest one."""
    has_newest: bool = False
    """The newest one is an ancestor of the push's commit."""
    goes_back: bool = False
    """The push took commits away: its commit is an ancestor of what was there before it."""


def push_order(
    push: Push, newest: Push, known: Sequence[Push], answers: OrderAnswers | None
) -> PushOrder | OrderQuestion:
    """Whether the push is newer than the newest so far, or what has to be asked first.

    `known` are pushes of the same branch, for the links between them. Without `answers` nothing is asked.
    """
    if push.commit_sha != newest.commit_sha:
        found = _by_links(push, newest, known)
        if found is None and answers is not None:
            question = OrderQuestion(
                commit_sha=push.commit_sha, before_sha=push.before_sha, newest_sha=newest.commit_sha
            )
            if question not in answers:
                return question
            found = answers[question]
        found = found or _one_of(push.before_sha == newest.commit_sha, newest.before_sha == push.commit_sha)
        if found is not None:
            return found
    return PushOrder.NEWER if push.seniority > newest.seniority else PushOrder.OLDER


def answer(question: OrderQuestion, history: CommitAncestry) -> PushOrder | None:
    """What the history makes of the question; None: it leaves it open.

    What the ref points at now is the newest of all. Else a commit that stands in the history of the other was there
    first, unless the push put the branch back to it.
    """
    if history.now == question.commit_sha:
        return PushOrder.NEWER
    if history.now == question.newest_sha:
        return PushOrder.OLDER
    return _one_of(history.has_newest, history.in_newest and not history.goes_back)


def _by_links(push: Push, newest: Push, known: Sequence[Push]) -> PushOrder | None:
    links: dict[str, set[str]] = {}
    for each in (*known, newest, push):
        if each.before_sha is not None:
            links.setdefault(each.commit_sha, set()).add(each.before_sha)
    return _one_of(
        newest.commit_sha in _earlier(push.commit_sha, links),
        push.commit_sha in _earlier(newest.commit_sha, links),
    )


def _earlier(commit_sha: str, links: Mapping[str, set[str]]) -> set[str]:
    """What the branch pointed at before it pointed at the commit, as far as the pushes tell."""
    found: set[str] = set()
    todo = [commit_sha]
    while todo:
        fresh = links.get(todo.pop(), set()) - found
        found |= fresh
        todo += fresh
    return found


def _one_of(newer: bool, older: bool) -> PushOrder | None:  # noqa: FBT001  two signs, of which each alone means something
    """Both at once mean nothing: the branch went back and forth."""
    if newer == older:
        return None
    return PushOrder.NEWER if newer else PushOrder.OLDER
