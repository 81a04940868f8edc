"""Read the block `env` of a job, a step, a service or of `defaults`. Pure."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlNode, SourcePosition
from solstice_orchestrator.workflow.shape import expect_arguments, expect_childless, plain, properties, text

MAX_ENVIRONMENT: Final = 200
MAX_VALUE_BYTES: Final = 32 * 1024
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

Fill = Callable[[str, SourcePosition], str]
"""Replaces the placeholders of a matrix in a text."""


def read_env(node: KdlNode, fill: Fill) -> Mapping[str, str]:
    """Read an `env` node into values by name."""
    expect_arguments(node, 0, 'env takes a block: env { NAME "value" }')
    properties(node, ())
    if len(node.children) > MAX_ENVIRONMENT:
        raise node.position.problem(f"a block of env may set {MAX_ENVIRONMENT} variables, no more")
    env: dict[str, str] = {}
    for child in node.children:
        plain(child.annotation, child.position)
        if not VARIABLE.fullmatch(child.name):
            raise child.position.problem(
                f"{child.name!r} cannot name a variable: letters, digits and '_', not first a digit"
            )
        if child.name.startswith("SOLSTICE_"):
            raise child.position.problem(
                f"{child.name!r}: the names that begin with SOLSTICE_ are set by Solstice CI"
            )
        if child.name in env:
            raise child.position.problem(f"{child.name!r} is set already in this block")
        properties(child, ())
        expect_childless(child)
        expect_arguments(child, 1, f'a variable has one value: {child.name} "value"')
        argument = child.arguments[0]
        value = fill(text(argument, f"the value of {child.name}"), argument.position)
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise argument.position.problem(
                f"the value of a variable may be {MAX_VALUE_BYTES // 1024} KiB long, no longer"
            )
        env[child.name] = value
    return MappingProxyType(env)
