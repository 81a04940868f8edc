"""What of a source is built, and how: rules of the operator, the first that fits decides. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.globs import EVERYTHING, fits
from solstice_common.messages import Priority
from solstice_common.values import Value
from solstice_forge.forges.events import Ignored, IgnoreReason


class RuleEvent(StrEnum):
    """What a rule can speak of, whatever the forge calls it."""

    PUSH = "push"
    """To a branch."""
    TAG = "tag"
    CHANGE_REQUEST = "change_request"
    COMMENT = "comment"
    """A command on a change request."""
    RERUN = "rerun"
    RELEASE = "release"
    DISPATCH = "dispatch"
    MERGE_GROUP = "merge_group"


class Forks(StrEnum):
    """What becomes of a change request that is not known to come from the repository itself."""

    NONE = "none"
    """Never built, not by a command either."""
    APPROVE = "approve"
    """Planned, and its jobs wait until somebody who may says so."""
    TRUSTED = "trusted"
    """Not built by itself; somebody who may push can ask for it by a command."""
    ALL = "all"
    """Built at once, as untrusted code."""


ALL_EVENTS: Final = frozenset(RuleEvent)
ALWAYS: Final = (EVERYTHING,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; it is for `events` in `repositories`, and what its other conditions refuse is not built."""

    name: str
    """What answers call it: given by the operator, else `rule 1` by its place."""
    repositories: tuple[str, ...] = ALWAYS
    """Globs of full names."""
    events: frozenset[RuleEvent] = ALL_EVENTS
    branches: tuple[str, ...] = ALWAYS
    """Globs: of the branch that was pushed, or that a change request wants to change. Tags are not asked."""
    paths: tuple[str, ...] = ALWAYS
    """Globs; one changed file that fits is enough. Only asked of pushes to branches."""
    priority: Priority | None = None
    """Never for a change request."""
    runs_on: str | None = None
    """Label for jobs whose workflow names none."""
    forks: Forks = Forks.APPROVE


NO_RULES_SAID: Final = Rule(name="none, everything is built")
"""What holds for a source without rules."""


class RuleSubject(Value, frozen=True, kw_only=True):
    """An event, as far as rules look at it."""

    event: RuleEvent
    repository: str
    """Full name."""
    branch: str | None = None
    """That was pushed, or that a change request wants to change; None: there is none, or the forge does not tell."""
    of_change_request: bool = False
    stranger: bool = False
    """It is not known that the code is of somebody who may push to the repository."""
    approves: bool = False
    """Somebody who may push asked for this very commit to be built."""


class Ruling(Value, frozen=True, kw_only=True):
    """It is built, and so."""

    rule: str
    priority: Priority | None = None
    runs_on: str | None = None
    needs_approval: bool = False
    """Its jobs wait until somebody who may says so."""
    approves: bool = False
    """It is the word for which such jobs wait."""


BUILT: Final = Ruling(rule=NO_RULES_SAID.name)

Changed = Callable[[], Collection[str] | None]
"""Asked for the changed paths when a rule looks at them; None: the forge does not tell, or not all."""


def decide(subject: RuleSubject, rules: Sequence[Rule], changed: Changed) -> Ruling | Ignored:
    """What the first rule that is for this repository and event says; what no rule is for is not built.

    A source without rules builds everything. What is not known (a branch, all of the paths) refuses nothing.
    """
    rule = next((rule for rule in rules if is_for(rule, subject)), None) if rules else NO_RULES_SAID
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
        # Who may not push must not choose to go first, and a change request is written by whoever likes.
        priority=None if subject.of_change_request or subject.stranger else rule.priority,
        runs_on=rule.runs_on,
        approves=subject.approves,
    )
    return _of_stranger(ruling, rule, subject) if subject.stranger else ruling


def is_for(rule: Rule, subject: RuleSubject) -> bool:
    """Whether the rule decides about it, if none before it does."""
    return subject.event in rule.events and fits(subject.repository, rule.repositories)


def _of_stranger(ruling: Ruling, rule: Rule, subject: RuleSubject) -> Ruling | Ignored:
    # Only who may push can have a check run again, so that alone is somebody's word for it.
    asked_for = subject.approves or subject.event is RuleEvent.RERUN
    match rule.forks:
        case Forks.ALL:
            return ruling
        case Forks.APPROVE:
            return ruling if asked_for else _awaiting(ruling)
        case Forks.TRUSTED if asked_for:
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
