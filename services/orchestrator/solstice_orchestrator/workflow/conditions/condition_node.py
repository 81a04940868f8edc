"""Read `if` of a job and of a step, and the node `on`. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from solstice_common.values.globs import EVERYTHING, InvalidGlob, fits, meaningful
from solstice_orchestrator.domain.jobs import JobCondition, JobSpec, StepCondition
from solstice_orchestrator.workflow.conditions.expression import (
    InvalidExpression,
    Vocabulary,
    read_expression,
)
from solstice_orchestrator.workflow.conditions.facts import RunFacts
from solstice_orchestrator.workflow.conditions.terms import (
    Fact,
    Term,
    decided,
    facts_of,
    with_facts,
    written_later,
)
from solstice_orchestrator.workflow.conditions.trigger import Trigger, TriggerEvent
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue
from solstice_orchestrator.workflow.matrix import MatrixCombination
from solstice_orchestrator.workflow.shape import (
    children,
    did_you_mean,
    expect_arguments,
    expect_childless,
    properties,
    text,
)

MAX_PATTERNS: Final = 50
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAMED: Final = frozenset(
    {TriggerEvent.PUSH, TriggerEvent.TAG, TriggerEvent.CHANGE_REQUEST, TriggerEvent.MERGE_GROUP}
)
"""Events that have a branch or a tag."""
_WITH_PATHS: Final = frozenset({TriggerEvent.PUSH, TriggerEvent.CHANGE_REQUEST})
"""Events that change paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIf:
    """When a step runs: after what, and for which runs."""

    written: str = ""
    """The expression; empty without one."""
    term: Term = ("success",)

    def decided(self, facts: RunFacts) -> StepCondition:
        """Return after what the step runs in this run."""
        return _AFTER[
            self._holds(facts, failed=False),
            self._holds(facts, failed=True),
        ]

    def _holds(self, facts: RunFacts, *, failed: bool) -> bool:
        def known(fact: Fact) -> str | bool | None:
            match fact:
                case ("failed",):
                    return failed
                case ("success",):
                    return not failed
                case _:
                    return facts.known(fact)

        return decided(self.term, known) is True


_AFTER: Final[Mapping[tuple[bool, bool], StepCondition]] = {
    (True, False): StepCondition.SUCCESS,
    (False, True): StepCondition.FAILED,
    (True, True): StepCondition.ALWAYS,
    (False, False): StepCondition.NEVER,
}
AFTER_SUCCESS: Final = StepIf()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIf:
    """When a job and its steps run: after what, and for which runs."""

    needs: JobCondition = JobCondition.SUCCESS
    written: str = ""
    """The expression; empty without one."""
    term: Term = True
    steps: tuple[StepIf, ...] = ()
    """One for each step; empty when no step has one."""

    @property
    def needs_paths(self) -> bool:
        """Whether changed paths decide."""
        terms = (self.term, *(step.term for step in self.steps))
        return any(fact[0] == "changed" for term in terms for fact in facts_of(term))

    def with_jobs(self, names: Mapping[str, Sequence[str]]) -> "JobIf":
        """Return it with all jobs of each name; a matrix makes several."""

        def jobs(fact: Fact) -> Fact:
            return ("result", *names[fact[1]]) if fact[0] == "result" else fact

        return replace(self, term=with_facts(self.term, jobs))

    def applied(self, job: JobSpec, facts: RunFacts) -> JobSpec:
        """Return the job as it is in a run with these facts."""
        rest = decided(self.term, facts.known)
        if rest is False:
            return replace(job, unmet=self.written)
        if rest is not True:
            job = replace(job, later=written_later(rest, self.written))
        if not self.steps:
            return job
        steps = tuple(
            replace(step, when=condition.decided(facts), condition=condition.written)
            for step, condition in zip(job.steps, self.steps, strict=True)
        )
        return replace(job, steps=steps)


NO_CONDITION: Final = JobIf()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEvent:
    """The branches or tags, and the changed paths, for which one event is built."""

    names: tuple[str, ...] = (EVERYTHING,)
    """Globs of branches or tags."""
    paths: tuple[str, ...] = ()
    """Globs of changed paths; empty: any."""
    ignored_paths: tuple[str, ...] = ()
    """Globs of changed paths that do not count."""

    @property
    def needs_paths(self) -> bool:
        """Whether changed paths decide."""
        return bool(self.paths or self.ignored_paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEvents:
    """The events for which a workflow is made, by its node `on`; without one, all."""

    events: Mapping[TriggerEvent, BuiltEvent] | None = None

    def refusal(self, facts: RunFacts) -> str:
        """Return why no run is made; empty: one is.

        What a person asks for is made in any case.
        """
        trigger = facts.trigger
        if self.events is None or trigger.is_requested:
            return ""
        event = self.events.get(trigger.event)
        if event is None or not _is_named(trigger, event.names):
            return f"'on' does not name {trigger.described()}"
        if event.needs_paths and not facts.changed.fit(
            event.paths or (EVERYTHING,), without=event.ignored_paths
        ):
            return f"'on' names no path that this {trigger.event.value} changed"
        return ""

    def needs_paths(self, trigger: Trigger) -> bool:
        """Return whether changed paths decide about a run."""
        event = None if self.events is None else self.events.get(trigger.event)
        return event is not None and not trigger.is_requested and event.needs_paths


def _is_named(trigger: Trigger, names: tuple[str, ...]) -> bool:
    match trigger.event:
        case TriggerEvent.TAG:
            return fits(trigger.tag, names)
        case TriggerEvent.CHANGE_REQUEST:
            # An older publisher does not say where it is to be merged: rather one run too many.
            return not trigger.target_branch or fits(trigger.target_branch, names)
        case TriggerEvent.PUSH | TriggerEvent.MERGE_GROUP:
            return fits(trigger.branch, names)
        case _:
            return True


EACH_EVENT: Final = BuiltEvents()


def read_if(value: KdlValue, combination: MatrixCombination, vocabulary: Vocabulary) -> JobIf:
    """Read `if` of a job: `success`, `always`, an expression, or `always &&` and an expression."""
    written = text(value, "if").strip()
    if written in set(JobCondition):
        return JobIf(needs=JobCondition(written))
    if written.isidentifier():
        known = [*JobCondition]
        raise value.position.problem(
            f'if is "success", "always" or an expression such as "event == \'push\'", not '
            f"{written[:40]!r}{did_you_mean(written, known)}"
        )
    needs, expression = JobCondition.SUCCESS, written
    first, both, rest = written.partition("&&")
    if both and first.strip() in set(JobCondition):
        needs, expression = JobCondition(first.strip()), rest
    term = _term(value, expression, combination, vocabulary)
    # A comparison of results decides for every result.
    if expression is written and any(fact[0] == "result" for fact in facts_of(term)):
        needs = JobCondition.ALWAYS
    return JobIf(needs=needs, written=expression.strip(), term=term)


def read_step_if(value: KdlValue, combination: MatrixCombination, vocabulary: Vocabulary) -> StepIf:
    """Read `if` of a step.

    It may say how the steps before it ended; otherwise they must have succeeded.
    """
    written = text(value, "if").strip()
    term = _term(value, written, combination, replace(vocabulary, needs=(), in_step=True))
    names_status = re.search(r"\b(?:failed|success|always)\b", _QUOTED.sub("", written)) is not None
    return StepIf(written=written, term=term if names_status else ("and", ("success",), term))


def _term(value: KdlValue, written: str, combination: MatrixCombination, vocabulary: Vocabulary) -> Term:
    try:
        return read_expression(written, vocabulary, lambda literal: combination.fill(literal, value.position))
    except InvalidExpression as error:
        raise value.position.problem(f"if: {error}") from None


def read_on(node: KdlNode) -> BuiltEvents:
    """Read the node `on`."""
    expect_arguments(node, 0, 'on takes a block: on { push "main"; change-request }')
    properties(node, ())
    events = tuple(event.value for event in TriggerEvent if event is not TriggerEvent.MANUAL)
    found = {
        TriggerEvent(child.name): _built_event(child)
        for child in children(node, events, "in 'on'", once=events)
    }
    if not found:
        raise node.position.problem('on names at least one event: on { push "main"; change-request }')
    return BuiltEvents(events=MappingProxyType(found))


def _built_event(node: KdlNode) -> BuiltEvent:
    has_paths = TriggerEvent(node.name) in _WITH_PATHS
    if has_paths:
        node, paths, ignored_paths = _split_paths(node)
    else:
        properties(node, ())
        paths = ignored_paths = ()
    expect_childless(node)
    if node.arguments and TriggerEvent(node.name) not in _NAMED:
        raise node.arguments[0].position.problem(f"{node.name!r} takes no patterns here")
    return BuiltEvent(
        names=_patterns(node.arguments, "a pattern of names") or (EVERYTHING,),
        paths=paths,
        ignored_paths=ignored_paths,
    )


def _split_paths(node: KdlNode) -> tuple[KdlNode, tuple[str, ...], tuple[str, ...]]:
    """Return the node without its paths, and both kinds of these.

    A property has one pattern, a block several.
    """
    values = properties(node, ("paths", "ignore-paths"))
    found: dict[str, list[KdlValue]] = {name: [value] for name, value in values.items()}
    for child in children(node, ("paths", "ignore-paths"), f"in {node.name!r}", once=()):
        properties(child, ())
        expect_childless(child)
        if not child.arguments:
            raise child.position.problem(f'{child.name} takes patterns: {child.name} "src/**" "*.toml"')
        found.setdefault(child.name, []).extend(child.arguments)
    return (
        replace(node, children=()),
        _patterns(found.get("paths", ()), "a pattern of paths"),
        _patterns(found.get("ignore-paths", ()), "a pattern of paths"),
    )


def _patterns(arguments: Sequence[KdlValue], what: str) -> tuple[str, ...]:
    if len(arguments) > MAX_PATTERNS:
        raise arguments[MAX_PATTERNS].position.problem(f"at most {MAX_PATTERNS} patterns stand here")
    patterns = []
    for argument in arguments:
        try:
            patterns.append(meaningful(text(argument, what)))
        except InvalidGlob as error:
            raise argument.position.problem(str(error)) from None
    return tuple(patterns)
