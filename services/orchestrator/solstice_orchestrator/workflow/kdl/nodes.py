"""What a KDL document holds, and where: nodes, arguments, properties, each with its position."""

from dataclasses import dataclass, field

from solstice_common.errors import InvalidWorkflow

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Line and column, both from 1; a column is one character, whatever its width."""

    line: int
    column: int

    def problem(self, sentence: str) -> InvalidWorkflow:
        """The error that says this, here."""
        return InvalidWorkflow(self.line, self.column, sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument, or the value of a property."""

    value: Scalar
    position: Position
    annotation: str | None = None
    written: str = field(default="", compare=False)
    """As it stands in the file: of the number `1.10` these four characters, which the value no longer knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """`name=value`; a node keeps every one it was given, in order, also when a name comes twice."""

    name: str
    position: Position
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node and where its name stands; `children` is empty for no block and for an empty one."""

    name: str
    position: Position
    annotation: str | None = None
    arguments: tuple[Value, ...] = ()
    properties: tuple[Property, ...] = ()
    children: tuple["Node", ...] = ()
