"""Read the node `template`, and make jobs of it. Pure.

A template is nodes, not text: a job that uses it is read as if its nodes stood there, at their own positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlNode
from solstice_orchestrator.workflow.shape import (
    did_you_mean,
    expect_arguments,
    expect_childless,
    expect_node,
    identifier,
    line,
    properties,
    text,
)

MAX_TEMPLATES: Final = 50
MAX_PARAMETERS: Final = 20
USE: Final = "use"
"""The property of a job that names its template."""

_ONCE: Final = frozenset({"matrix", "concurrency", "checkout", "image"})
"""Nodes of which a job's own replaces that of its template; of others it has both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """A job without a name, that others are made of."""

    node: KdlNode
    parameters: Mapping[str, str | None]
    """Defaults by name; None: each job gives it."""


NO_TEMPLATES: Final[Mapping[str, JobTemplate]] = MappingProxyType({})


def read_template(node: KdlNode, known: Mapping[str, JobTemplate]) -> tuple[str, JobTemplate]:
    """Read one node `template` with its name; `known` are those before it."""
    expect_arguments(node, 1, 'a template has one name: template "python" { ... }')
    name = identifier(node.arguments[0], "the name of a template", 100)
    if name in known:
        raise node.arguments[0].position.problem(f"there is a template {name!r} already; names are unique")
    if len(known) == MAX_TEMPLATES:
        raise node.position.problem(f"a workflow may have {MAX_TEMPLATES} templates, no more")
    for item in node.properties:
        if item.name == USE:
            raise item.position.problem("a template uses no other one")
    parameters: dict[str, str | None] = {}
    for child in node.children:
        if child.name == "parameter":
            parameter, default = _parameter(child, parameters)
            parameters[parameter] = default
    children = tuple(child for child in node.children if child.name != "parameter")
    return name, JobTemplate(node=replace(node, children=children), parameters=MappingProxyType(parameters))


def with_template(
    job: KdlNode, templates: Mapping[str, JobTemplate]
) -> tuple[KdlNode, Mapping[str, str] | None]:
    """Return the job with what its template gives, and its parameters.

    They are None for a job without a template.
    """
    use = next((item for item in job.properties if item.name == USE), None)
    if use is None:
        return job, None
    name = text(use.value, USE)
    if name not in templates:
        known = f"; known: {', '.join(templates)}" if templates else ""
        raise use.value.position.problem(
            f"there is no template {name!r}{did_you_mean(name, templates)}{known}"
        )
    template = templates[name]
    own = {item.name for item in job.properties}
    inherited = [item for item in template.node.properties if item.name not in own]
    given = [child for child in job.children if child.name == "with"]
    return (
        replace(
            job,
            properties=(*inherited, *(item for item in job.properties if item.name != USE)),
            children=tuple(_children(template.node.children, job.children)),
        ),
        _parameters(job, template, given),
    )


def _parameter(node: KdlNode, known: Mapping[str, str | None]) -> tuple[str, str | None]:
    expect_node(node, ("parameter",), "in a template")
    expect_arguments(node, 1, 'a parameter has one name: parameter "version" default="3.12"')
    expect_childless(node)
    values = properties(node, ("default",))
    name = identifier(node.arguments[0], "the name of a parameter", 32)
    if name in known:
        raise node.arguments[0].position.problem(f"there is a parameter {name!r} already; names are unique")
    if len(known) == MAX_PARAMETERS:
        raise node.position.problem(f"a template may have {MAX_PARAMETERS} parameters, no more")
    return name, line(values["default"], "a parameter") if "default" in values else None


def _parameters(job: KdlNode, template: JobTemplate, given: Sequence[KdlNode]) -> Mapping[str, str]:
    if len(given) > 1:
        raise given[1].position.problem("'with' stands here a second time; put all into one")
    values: dict[str, str] = {}
    for node in given:
        expect_arguments(node, 0, 'with takes parameters: with version="3.12"')
        expect_childless(node)
        found = properties(node, tuple(template.parameters))
        values = {name: line(value, "a parameter") for name, value in found.items()}
    for name, default in template.parameters.items():
        if name not in values and default is None:
            raise job.position.problem(f'the template needs the parameter {name!r}: with {name}="..."')
        values.setdefault(name, default or "")
    return MappingProxyType(values)


def _children(inherited: Sequence[KdlNode], own: Sequence[KdlNode]) -> Iterator[KdlNode]:
    """Yield the template's nodes, and then the job's own; both of `env` become one."""
    names = {child.name for child in own}
    for child in inherited:
        if child.name == "env" and "env" in names:
            yield _merged_env(child, next(each for each in own if each.name == "env"))
        elif child.name not in _ONCE or child.name not in names:
            yield child
    has_env = any(child.name == "env" for child in inherited)
    merged = False
    for child in own:
        if child.name == "with":
            continue
        if child.name == "env" and has_env and not merged:
            merged = True
            continue
        yield child


def _merged_env(inherited: KdlNode, own: KdlNode) -> KdlNode:
    names = {variable.name for variable in own.children}
    others = (variable for variable in inherited.children if variable.name not in names)
    return replace(own, children=(*others, *own.children))
