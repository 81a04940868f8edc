"""Read KDL 2 with positions: of each value, and of each error.

ckdl gives the values, but no positions, and its errors have two words. So `read` scans the text itself (`scanner.py`),
and gives ckdl only text that passed: its C code never sees a hostile document, and both readers must agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ckdl

from solstice_orchestrator.workflow.kdl.nodes import KdlNode, KdlProperty, KdlScalar, KdlValue, SourcePosition
from solstice_orchestrator.workflow.kdl.scanner import scan

__all__ = ["KdlNode", "KdlProperty", "KdlScalar", "KdlValue", "SourcePosition", "read", "scan"]


def read(text: str) -> tuple[KdlNode, ...]:
    """Read the nodes of a KDL 2 document; InvalidWorkflow names line, column and problem."""
    nodes = scan(text)
    try:
        document = ckdl.parse(text, version=2)
    except ckdl.ParseError as error:
        # Tests hold the two readers to agree; if they do not, ckdl decides, and this is the nearest known position.
        first = nodes[0].position if nodes else SourcePosition(line=1, column=1)
        raise first.problem(f"this document cannot be read as KDL 2 ({error})") from None
    return tuple(_with_values(nodes, document.nodes))


def _with_values(values: Sequence[KdlNode], results: Sequence[Any]) -> Iterator[KdlNode]:
    """Our nodes with ckdl's values."""
    if len(values) != len(results):
        where = values[0].position if values else SourcePosition(line=1, column=1)
        raise where.problem("the readers of this document do not agree how many nodes stand here")
    for node, other in zip(values, results, strict=True):
        names = {item.name: item for item in node.properties}
        if (node.name, len(node.arguments), set(names)) != (
            other.name,
            len(other.args),
            set(other.properties),
        ):
            raise node.position.problem("the readers of this document do not agree what this node holds")
        yield replace(
            node,
            arguments=tuple(
                replace(argument, value=_bare(value))
                for argument, value in zip(node.arguments, other.args, strict=True)
            ),
            # Of repeated properties ckdl keeps the last; the others keep our value.
            properties=tuple(
                replace(item, value=replace(item.value, value=_bare(other.properties[item.name])))
                if names[item.name] is item
                else item
                for item in node.properties
            ),
            children=tuple(_with_values(node.children, other.children)),
        )


def _bare(value: Any) -> KdlScalar:
    plain: KdlScalar = value.value if isinstance(value, ckdl.Value) else value
    return plain
