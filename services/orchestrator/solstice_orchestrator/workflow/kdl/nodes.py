"""Nodes, arguments and properties of a KDL document, each with its position."""

from dataclasses import dataclass

from solstice_common.errors import InvalidWorkflow

KdlScalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Line and column, both from 1; a column is one character of any width."""

    line: int
    column: int

    def problem(self, sentence: str) -> InvalidWorkflow:
        """Return an error with this sentence, at this position."""
        return InvalidWorkflow(self.line, self.column, sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlValue:
    """An argument, or the value of a property."""

    value: KdlScalar
    position: SourcePosition
    annotation: str | None
    written: str
    """As written in the file: for the number `1.10` these four characters, which the value loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlProperty:
    """A property `name=value`.

    A node keeps every one that was given, in order, also when a name is repeated.
    """

    name: str
    position: SourcePosition
    value: KdlValue


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlNode:
    """A node and the position of its name.

    `children` is empty for no block and for an empty one.
    """

    name: str
    position: SourcePosition
    annotation: str | None
    arguments: tuple[KdlValue, ...]
    properties: tuple[KdlProperty, ...]
    children: tuple["KdlNode", ...]
