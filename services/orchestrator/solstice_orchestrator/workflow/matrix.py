"""Expand a job with a `matrix`, with `parallel`, or with both, into its jobs. Pure."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import (
    did_you_mean,
    expect_arguments,
    expect_childless,
    line,
    plain,
    properties,
    whole_number,
)

MAX_AXES: Final = 8
MAX_COMBINATIONS: Final = 256
PARALLEL: Final = "parallel"
"""The property of a job that makes several of it."""

_RULES: Final = ("exclude", "include")
_AXIS: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_REFERENCE: Final = re.compile(r"\{(matrix|param)\.([^{}\s]*)\}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCombination:
    """One value of every axis in order, and the number of a parallel job.

    It is empty without both.
    """

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    part: tuple[int, int] | None = None
    """The job's number, from 1, and how many there are; None without `parallel`."""
    parameters: Mapping[str, str] | None = None
    """What its template gets; None without one."""

    def name(self, job: str) -> str:
        """Return the name of this combination's job, for example `test-linux-3.12`."""
        parts = [_NOT_IN_NAMES.sub("-", value) for value in self.values.values()]
        return "-".join([job, *parts, *([str(self.part[0])] if self.part else [])])

    @property
    def env(self) -> Mapping[str, str]:
        """The variables for the steps, for example `MATRIX_OS`."""
        env = {_variable(axis): value for axis, value in self.values.items()}
        if self.part:
            env |= {"PARALLEL_INDEX": str(self.part[0]), "PARALLEL_TOTAL": str(self.part[1])}
        return env

    @property
    def shown(self) -> Mapping[str, str]:
        """What tells the job from its siblings: the values, and `parallel`, for example `1/4`."""
        if self.part is None:
            return self.values
        return MappingProxyType({**self.values, PARALLEL: "{}/{}".format(*self.part)})

    def fill(self, written: str, position: SourcePosition) -> str:
        """`written` with each `{matrix.AXIS}` and `{param.NAME}` replaced by its value."""

        def value(match: re.Match[str]) -> str:
            axis = match[2]
            if match[1] == "param":
                if self.parameters is not None and axis in self.parameters:
                    return self.parameters[axis]
                hint = did_you_mean(axis, self.parameters or ())
                raise position.problem(f"{match[0]}: there is no parameter {axis!r} here{hint}")
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
    """Return the combinations of a `matrix` node.

    Those of the axes, the last changing first, and then the included ones.
    """
    expect_arguments(node, 0, 'matrix takes a block: matrix { os "linux" "illumos" }')
    properties(node, ())
    rules = [child for child in node.children if child.name in _RULES]
    axes = _axes([child for child in node.children if child.name not in _RULES])
    for rule in rules:
        plain(rule.annotation, rule.position)
        expect_arguments(rule, 0, f'{rule.name} takes values of axes: {rule.name} os="linux" python="3.12"')
        expect_childless(rule)
    excluded = [_excluded(rule, axes) for rule in rules if rule.name == "exclude"]
    found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()) if axes]
    found = [values for values in found if not any(each.items() <= values.items() for each in excluded)]
    for rule in rules:
        if rule.name == "include":
            found.append(_included(rule, list(axes) or list(found[0] if found else ()), found))
    if not found:
        raise node.position.problem(
            "the exclude rules leave no combination of this matrix"
            if excluded
            else 'a matrix needs at least one axis: matrix { os "linux" "illumos" }'
        )
    if len(found) > MAX_COMBINATIONS:
        raise node.position.problem(
            f"a matrix may have {MAX_COMBINATIONS} combinations, this one has {len(found)}"
        )
    return [MatrixCombination(values=MappingProxyType(values)) for values in found]


def in_parts(value: KdlValue, each: Sequence[MatrixCombination]) -> Sequence[MatrixCombination]:
    """Return each combination as often as `parallel` says."""
    total = whole_number(value, PARALLEL, MAX_COMBINATIONS)
    if total == 0:
        raise value.position.problem("parallel is at least 1; without it there is one job")
    if len(each) * total > MAX_COMBINATIONS:
        raise value.position.problem(
            f"{len(each)} combinations, each {total} times, are more than {MAX_COMBINATIONS} jobs"
        )
    if PARALLEL in each[0].values:
        raise value.position.problem("the matrix of this job has an axis 'parallel'; call that otherwise")
    return [
        replace(combination, part=(number, total)) for combination in each for number in range(1, total + 1)
    ]


def _axes(nodes: Sequence[KdlNode]) -> Mapping[str, Sequence[str]]:
    """Read the values of each axis."""
    axes: dict[str, Sequence[str]] = {}
    count = 1
    for node in nodes:
        _check_axis(node.name, node.position, axes)
        axes[node.name] = _values(node)
        count *= len(axes[node.name])
        if count > MAX_COMBINATIONS:
            raise node.position.problem(
                f"a matrix may have {MAX_COMBINATIONS} combinations, this one has more"
            )
    return axes


def _check_axis(name: str, position: SourcePosition, axes: Iterable[str]) -> None:
    """Check that another axis beside `axes` may have this name."""
    known = list(axes)
    if not _AXIS.fullmatch(name):
        raise position.problem(
            f"{name[:80]!r} cannot name an axis: at most 32 letters, digits, '_' and '-', first a letter"
        )
    if _variable(name) in map(_variable, known):
        raise position.problem(f"there is an axis of that name already: both are {_variable(name)}")
    if len(known) == MAX_AXES:
        raise position.problem(f"a matrix may have {MAX_AXES} axes, no more")


def _excluded(rule: KdlNode, axes: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Read the values that a combination may not have together."""
    found = {axis: line(value, "a value of a matrix") for axis, value in properties(rule, list(axes)).items()}
    if not found:
        raise rule.position.problem('exclude names what to leave out: exclude os="illumos" python="3.11"')
    for item in rule.properties:
        value, known = found[item.name], axes[item.name]
        if value not in known:
            raise item.value.position.problem(
                f"{value!r} is no value of {item.name!r}{did_you_mean(value, known)}, so nothing is left out"
            )
    return found


def _included(rule: KdlNode, axes: Sequence[str], found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Read one more combination.

    It has the axes of the others, and its own where there are none.
    """
    if not axes:
        for number, item in enumerate(rule.properties):
            _check_axis(item.name, item.position, [each.name for each in rule.properties[:number]])
        axes = [item.name for item in rule.properties]
    values = properties(rule, axes)
    if missing := [axis for axis in axes if axis not in values]:
        raise rule.position.problem(f"include names a value of every axis; missing: {', '.join(missing)}")
    if not axes:
        raise rule.position.problem('include names a value of every axis: include os="linux" python="3.13"')
    included = {axis: line(values[axis], "a value of a matrix") for axis in axes}
    if included in found:
        raise rule.position.problem("this combination is in the matrix already; once is enough")
    return included


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
