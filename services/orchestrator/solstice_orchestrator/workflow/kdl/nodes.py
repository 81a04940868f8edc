"""What a KDL document holds, and where: nodes, arguments, properties, each with its position."""

from dataclasses import dataclass, field

from solstice_common.errors import InvalidWorkflow

KdlScalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Line and column, both from 1; a column is one character, whatever its width."""

    line: int
    column: int

    def problem(self, sentence: str) -> InvalidWorkflow:
        """The error that says this, here."""
        return InvalidWorkflow(self.line, self.column, sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlValue:
    """An argument, or the value of a property."""

    value: KdlScalar
    position: SourcePosition
    annotation: str | None = None
    written: str = field(default="", compare=False)
    """As it stands in the file: of the number `1.10` these four characters, which the value no longer knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlProperty:
    """`name=value`; a node keeps every one it was given, in order, also when a name comes twice."""

    name: str
    position: SourcePosition
    value: KdlValue


@dataclass(frozen=True, slots=True, kw_only=True)
class KdlNode:
    """A node and where its name stands; `children` is empty for no block and for an empty one."""

    name: str
    position: SourcePosition
    annotation: str | None = None
    arguments: tuple[KdlValue, ...] = ()
    properties: tuple[KdlProperty, ...] = ()
    children: tuple["KdlNode", ...] = ()
