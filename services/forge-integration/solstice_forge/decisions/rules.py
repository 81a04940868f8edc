"""Decides what of a source is built, and how: the first matching rule decides. Pure.

The operator writes the rules.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.messages import Priority
from solstice_common.values.globs import EVERYTHING, fits
from solstice_common.values.value import Value
from solstice_forge.forges.events import Ignored, IgnoreReason


class RuleEvent(StrEnum):
    """The events that a rule can name, the same for every forge."""

    PUSH = "push"
    """A push to a branch."""
    TAG = "tag"
    CHANGE_REQUEST = "change_request"
    COMMENT = "comment"
    """A command on a change request."""
    RERUN = "rerun"
    RELEASE = "release"
    DISPATCH = "dispatch"
    MERGE_GROUP = "merge_group"


class Forks(StrEnum):
    """What happens to a change request that may come from a fork."""

    NONE = "none"
    """It is never built, not even by a command."""
    APPROVE = "approve"
    """It is planned, and its jobs wait for the approval of a person who may push."""
    TRUSTED = "trusted"
    """It is built only after a command from a person who may push."""
    ALL = "all"
    """It is built at once, as untrusted code."""


ALL_EVENTS: Final = frozenset(RuleEvent)
ALWAYS: Final = (EVERYTHING,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule for `events` in `repositories`.

    An event that fails its other conditions is not built.
    """

    name: str
    """Its name in answers: given by the operator, else `rule 1` by its place."""
    repositories: tuple[str, ...] = ALWAYS
    """Globs of full names."""
    events: frozenset[RuleEvent] = ALL_EVENTS
    branches: tuple[str, ...] = ALWAYS
    """Globs of the pushed branch or a change request's target branch. They do not apply to tags."""
    paths: tuple[str, ...] = ALWAYS
    """Globs; one changed file that matches is enough. They apply only to pushes to branches."""
    priority: Priority | None = None
    """It never applies to a change request."""
    runs_on: str | None = None
    """The label of jobs whose workflow names none."""
    forks: Forks = Forks.APPROVE


IMPLICIT_RULE: Final = Rule(name="none, everything is built")
"""The ruling of a source without rules."""


class RuleSubject(Value, frozen=True, kw_only=True):
    """The parts of an event that rules look at."""

    event: RuleEvent
    repository: str
    """The full name."""
    branch: str | None = None
    """The pushed branch or a change request's target; None if there is none or it is unknown."""
    of_change_request: bool = False
    stranger: bool = False
    """Whether the code may come from a person who may not push to the repository."""
    approves: bool = False
    """Whether a person who may push asked for exactly this commit to be built."""


class Ruling(Value, frozen=True, kw_only=True):
    """The event is built, in this way."""

    rule: str
    priority: Priority | None = None
    runs_on: str | None = None
    needs_approval: bool = False
    """Whether its jobs wait for the approval of a person who may give it."""
    approves: bool = False
    """Whether this event is the approval for which such jobs wait."""


BUILT: Final = Ruling(rule=IMPLICIT_RULE.name)

Changed = Callable[[], Collection[str] | None]
"""Returns the changed paths when a rule looks at them; None if they are not all known."""


def decide(subject: RuleSubject, rules: Sequence[Rule], changed: Changed) -> Ruling | Ignored:
    """Return the verdict of the first rule for this repository and event.

    An event without a matching rule is not built. A source without rules builds everything. Unknown values (a branch,
    the changed paths) refuse nothing.
    """
    rule = next((rule for rule in rules if is_for(rule, subject)), None) if rules else IMPLICIT_RULE
    if rule is None:
        what = f"{subject.event.value} in {subject.repository}"
        return _ignored(IgnoreReason.NO_RULE, f"no rule is for a {what}", subject)
    if subject.branch is not None and not fits(subject.branch, rule.branches):
        return _ignored(
            IgnoreReason.BRANCH_NOT_BUILT, f"{rule.name}: not for the branch {subject.branch}", subject
        )
    if rule.paths != ALWAYS and subject.event is RuleEvent.PUSH:
        paths = changed()
        if paths is not None and not any(fits(path, rule.paths) for path in paths):
            return _ignored(
                IgnoreReason.PATHS_NOT_BUILT,
                f"{rule.name}: none of the changed files is of its paths",
                subject,
            )
    ruling = Ruling(
        rule=rule.name,
        # A person who may not push must not choose the priority, and anyone may write a change request.
        priority=None if subject.of_change_request or subject.stranger else rule.priority,
        runs_on=rule.runs_on,
        approves=subject.approves,
    )
    return _of_stranger(ruling, rule, subject) if subject.stranger else ruling


def is_for(rule: Rule, subject: RuleSubject) -> bool:
    """Whether the rule decides about the subject if no earlier rule does."""
    return subject.event in rule.events and fits(subject.repository, rule.repositories)


def _of_stranger(ruling: Ruling, rule: Rule, subject: RuleSubject) -> Ruling | Ignored:
    # Only a person who may push can run a check again, so this alone is an approval.
    requested = subject.approves or subject.event is RuleEvent.RERUN
    match rule.forks:
        case Forks.ALL:
            return ruling
        case Forks.APPROVE:
            return ruling if requested else _awaiting(ruling)
        case Forks.TRUSTED if requested:
            return ruling
        case Forks.TRUSTED | Forks.NONE:
            return _ignored(
                IgnoreReason.FORK_NOT_BUILT,
                f"{rule.name}: forks = {rule.forks.value}, and this is not known to come from the repository itself",
                subject,
            )


def _awaiting(ruling: Ruling) -> Ruling:
    return Ruling(rule=ruling.rule, runs_on=ruling.runs_on, needs_approval=True)


def _ignored(reason: IgnoreReason, detail: str, subject: RuleSubject) -> Ignored:
    return Ignored(reason=reason, detail=detail, repo_full_name=subject.repository)
