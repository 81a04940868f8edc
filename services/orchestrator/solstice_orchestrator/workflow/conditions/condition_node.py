"""Read `if` of a job and of a step, and the node `on`. Pure."""

import re
from collections.abc import Mapping
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
from solstice_orchestrator.workflow.conditions.terms import Fact, Term, decided
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

    def applied(self, job: JobSpec, facts: RunFacts) -> JobSpec:
        """Return the job as it is in a run with these facts."""
        unmet = "" if decided(self.term, facts.known) is True else self.written
        if not self.steps or unmet:
            return replace(job, unmet=unmet)
        steps = tuple(
            replace(step, when=condition.decided(facts), condition=condition.written)
            for step, condition in zip(job.steps, self.steps, strict=True)
        )
        return replace(job, steps=steps)


NO_CONDITION: Final = JobIf()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEvents:
    """The events for which a workflow is made, by its node `on`; without one, all."""

    patterns: Mapping[TriggerEvent, tuple[str, ...]] | None = None
    """Globs of branches or tags by event."""

    def covers(self, trigger: Trigger) -> bool:
        """Whether a run is made. What a person asks for is made in any case."""
        if self.patterns is None or trigger.is_requested:
            return True
        patterns = self.patterns.get(trigger.event)
        if patterns is None:
            return False
        match trigger.event:
            case TriggerEvent.TAG:
                return fits(trigger.tag, patterns)
            case TriggerEvent.CHANGE_REQUEST:
                # An older publisher does not say where it is to be merged: rather one run too many.
                return not trigger.target_branch or fits(trigger.target_branch, patterns)
            case TriggerEvent.PUSH | TriggerEvent.MERGE_GROUP:
                return fits(trigger.branch, patterns)
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
    return JobIf(
        needs=needs,
        written=expression.strip(),
        term=_term(value, expression, combination, vocabulary),
    )


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
        TriggerEvent(child.name): _patterns(child) for child in children(node, events, "in 'on'", once=events)
    }
    if not found:
        raise node.position.problem('on names at least one event: on { push "main"; change-request }')
    return BuiltEvents(patterns=MappingProxyType(found))


def _patterns(node: KdlNode) -> tuple[str, ...]:
    properties(node, ())
    expect_childless(node)
    if node.arguments and TriggerEvent(node.name) not in _NAMED:
        raise node.arguments[0].position.problem(f"{node.name!r} takes no patterns here")
    if len(node.arguments) > MAX_PATTERNS:
        raise node.arguments[MAX_PATTERNS].position.problem(f"at most {MAX_PATTERNS} patterns stand here")
    patterns = []
    for argument in node.arguments:
        try:
            patterns.append(meaningful(text(argument, "a pattern of names")))
        except InvalidGlob as error:
            raise argument.position.problem(str(error)) from None
    return tuple(patterns) or (EVERYTHING,)
