"""Expand a job with a `matrix` into one job per combination. Pure."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlNode, SourcePosition
from solstice_orchestrator.workflow.shape import (
    did_you_mean,
    expect_arguments,
    expect_childless,
    line,
    plain,
    properties,
)

MAX_AXES: Final = 8
MAX_COMBINATIONS: Final = 256

_AXIS: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_REFERENCE: Final = re.compile(r"\{matrix\.([^{}\s]*)\}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCombination:
    """One value of every axis, in the order of the file; empty without a matrix."""

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def name(self, job: str) -> str:
        """Return the name of this combination's job, for example `test-linux-3.12`."""
        return "-".join([job, *(_NOT_IN_NAMES.sub("-", value) for value in self.values.values())])

    @property
    def env(self) -> Mapping[str, str]:
        """The variables for the steps, for example `MATRIX_OS`."""
        return {_variable(axis): value for axis, value in self.values.items()}

    def fill(self, written: str, position: SourcePosition) -> str:
        """`written` with each `{matrix.AXIS}` replaced by its value."""

        def value(match: re.Match[str]) -> str:
            axis = match[1]
            if axis in self.values:
                return self.values[axis]
            known = (
                f"{did_you_mean(axis, self.values)}; known: {', '.join(self.values)}" if self.values else ""
            )
            problem = "this matrix has no axis" if self.values else "there is no matrix here, so there is no"
            raise position.problem(f"{match[0]}: {problem} {axis!r}{known}")

        return _REFERENCE.sub(value, written)


NO_MATRIX: Final = MatrixCombination()


def combinations(node: KdlNode) -> Sequence[MatrixCombination]:
    """Return every combination of a `matrix` node's values, the last axis changing first."""
    expect_arguments(node, 0, 'matrix takes a block: matrix { os "linux" "illumos" }')
    properties(node, ())
    axes: dict[str, Sequence[str]] = {}
    count = 1
    for child in node.children:
        if not _AXIS.fullmatch(child.name):
            raise child.position.problem(
                f"{child.name[:80]!r} cannot name an axis: at most 32 letters, digits, '_' and '-', first a letter"
            )
        if _variable(child.name) in map(_variable, axes):
            raise child.position.problem(
                f"there is an axis of that name already: both are {_variable(child.name)}"
            )
        if len(axes) == MAX_AXES:
            raise child.position.problem(f"a matrix may have {MAX_AXES} axes, no more")
        axes[child.name] = _values(child)
        count *= len(axes[child.name])
        if count > MAX_COMBINATIONS:
            raise child.position.problem(
                f"a matrix may have {MAX_COMBINATIONS} combinations, this one has more"
            )
    if not axes:
        raise node.position.problem('a matrix needs at least one axis: matrix { os "linux" "illumos" }')
    return [
        MatrixCombination(values=MappingProxyType(dict(zip(axes, values, strict=True))))
        for values in itertools.product(*axes.values())
    ]


def _values(node: KdlNode) -> Sequence[str]:
    plain(node.annotation, node.position)
    properties(node, ())
    expect_childless(node)
    if not node.arguments:
        raise node.position.problem(f'an axis needs values: {node.name} "one" "two"')
    values: list[str] = []
    for argument in node.arguments:
        value = line(argument, "a value of a matrix")
        if value in values:
            raise argument.position.problem(f"{value!r} is a value of {node.name!r} already; once is enough")
        values.append(value)
    return values


def _variable(axis: str) -> str:
    return f"MATRIX_{axis.upper().replace('-', '_')}"
