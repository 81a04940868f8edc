"""Read `if` of a job, and the node `on`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from solstice_common.values.globs import EVERYTHING, InvalidGlob, fits, meaningful
from solstice_orchestrator.domain.jobs import JobCondition
from solstice_orchestrator.workflow.expression import Condition, InvalidExpression, read_expression
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
from solstice_orchestrator.workflow.trigger import Trigger, TriggerEvent

MAX_PATTERNS: Final = 50
_NAMED: Final = frozenset(
    {TriggerEvent.PUSH, TriggerEvent.TAG, TriggerEvent.CHANGE_REQUEST, TriggerEvent.MERGE_GROUP}
)
"""Events that have a branch or a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIf:
    """When a job runs: how its needs ended, and what is true of the run."""

    needs: JobCondition = JobCondition.SUCCESS
    written: str = ""
    """The expression; empty without one."""
    expression: Condition | None = None

    def unmet(self, trigger: Trigger) -> str:
        """Return the expression when it leaves the job out of this run, else nothing."""
        return "" if self.expression is None or self.expression(trigger) else self.written


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


def read_if(value: KdlValue, combination: MatrixCombination) -> JobIf:
    """Read `if`: `success`, `always`, an expression, or `always &&` and an expression."""
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
    try:
        condition = read_expression(expression, lambda literal: combination.fill(literal, value.position))
    except InvalidExpression as error:
        raise value.position.problem(f"if: {error}") from None
    return JobIf(needs=needs, written=expression.strip(), expression=condition)


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
