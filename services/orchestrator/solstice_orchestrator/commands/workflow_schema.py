"""The JSON Schema of a workflow file, for editors. Pure.

It describes the tree of the file, a list of nodes: `{"name", "arguments", "properties", "children"}`. What a schema cannot
see, such as names that have to exist, the reader alone checks; a test holds both to the same names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from solstice_orchestrator.workflow.kdl import KdlNode

TEXT: Final[Mapping[str, Any]] = MappingProxyType({"type": "string"})
TRUTH: Final[Mapping[str, Any]] = MappingProxyType({"type": "boolean"})
WHOLE: Final[Mapping[str, Any]] = MappingProxyType({"type": "integer", "minimum": 0})
NUMBER: Final[Mapping[str, Any]] = MappingProxyType({"type": "number"})
NETWORK: Final[Mapping[str, Any]] = MappingProxyType({"enum": ["none", "services-only", "default"]})
PULL: Final[Mapping[str, Any]] = MappingProxyType({"enum": ["missing", "always", "never"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What a node may have."""

    arguments: tuple[int, int | None] = (0, 0)
    """The least and the most; None: any number."""
    argument: Mapping[str, Any] = field(default_factory=lambda: TEXT)
    """What each argument is."""
    properties: Mapping[str, Mapping[str, Any]] | None = field(default_factory=dict)
    """None: any names."""
    required: tuple[str, ...] = ()
    children: Mapping[str, str] | None = field(default_factory=dict)
    """Kinds of nodes by name; None: any names, each with values alone."""


_LIMITS: Final = {"runs-on": TEXT, "timeout": TEXT, "no-output-timeout": TEXT, "retries": WHOLE}
_SIZES: Final = {"memory": TEXT, "cpus": NUMBER, "network": NETWORK}
_PLACE: Final = {"working-directory": TEXT, "shell": TEXT}
_JOB_NODES: Final = (
    *("step", "needs", "env", "matrix", "concurrency", "secret", "checkout", "image", "service", "artifact"),
    *("artifacts", "output", "cache", "report"),
)
_JOB_PROPERTIES: Final = {**_LIMITS, **_SIZES, **_PLACE, "if": TEXT, "parallel": WHOLE}
_EVENTS: Final = ("push", "tag", "change-request", "merge-group", "release", "schedule")
_PATHS: Final = {"paths": TEXT, "ignore-paths": TEXT}
_SOME: Final = (1, None)
RULES: Final[Mapping[str, NodeRule]] = {
    "job": NodeRule(
        arguments=(1, 1),
        properties={**_JOB_PROPERTIES, "use": TEXT},
        children={**{name: name for name in _JOB_NODES}, "with": "with"},
    ),
    "template": NodeRule(
        arguments=(1, 1),
        properties=_JOB_PROPERTIES,
        children={**{name: name for name in _JOB_NODES}, "parameter": "parameter"},
    ),
    "parameter": NodeRule(arguments=(1, 1), properties={"default": TEXT}),
    "with": NodeRule(properties=None),
    "step": NodeRule(
        arguments=(0, 1),
        properties={"run": TEXT, "timeout": TEXT, "if": TEXT, "continue": TRUTH, **_PLACE},
        required=("run",),
        children={"env": "env", "secret": "secret"},
    ),
    "needs": NodeRule(arguments=_SOME),
    "env": NodeRule(children=None),
    "matrix": NodeRule(children=None),
    "concurrency": NodeRule(arguments=(1, 1), properties={"mode": {"enum": ["queue", "cancel"]}}),
    "secret": NodeRule(arguments=_SOME),
    "checkout": NodeRule(
        arguments=(0, 1),
        argument={"const": "none"},
        properties={
            "depth": WHOLE,
            "tags": TRUTH,
            "submodules": {"enum": [True, False, "recursive"]},
            "lfs": TRUTH,
            "ref": {"enum": ["head", "merge"]},
        },
    ),
    "image": NodeRule(arguments=(1, 1), properties={"pull": PULL}),
    "service": NodeRule(
        arguments=(1, 1),
        properties={"image": TEXT, "pull": PULL, "memory": TEXT, "cpus": NUMBER, "ready-timeout": TEXT},
        required=("image",),
        children={"env": "env", "ready": "text", "port": "number"},
    ),
    "artifact": NodeRule(arguments=(1, 1), properties={"path": TEXT, "retention": TEXT}, required=("path",)),
    "artifacts": NodeRule(arguments=_SOME, properties={"from": TEXT, "into": TEXT}),
    "output": NodeRule(arguments=(1, 2), properties={"default": TEXT}),
    "cache": NodeRule(
        arguments=(1, 1),
        properties={"path": TEXT, "key": TEXT, "fallback": TEXT},
        required=("key",),
        children={"path": "texts", "fallback": "texts"},
    ),
    "report": NodeRule(arguments=(2, 2), properties={"required": TRUTH}),
    "defaults": NodeRule(
        properties={**_LIMITS, **_SIZES},
        children={name: name for name in ("env", "checkout", "image", "service", "cache")},
    ),
    "on": NodeRule(children={name: name for name in _EVENTS}),
    "push": NodeRule(
        arguments=(0, None), properties=_PATHS, children={"paths": "texts", "ignore-paths": "texts"}
    ),
    "change-request": NodeRule(
        arguments=(0, None), properties=_PATHS, children={"paths": "texts", "ignore-paths": "texts"}
    ),
    "tag": NodeRule(arguments=(0, None)),
    "merge-group": NodeRule(arguments=(0, None)),
    "release": NodeRule(),
    "schedule": NodeRule(),
    "input": NodeRule(
        arguments=(1, 1),
        properties={
            "type": {"enum": ["text", "choice", "boolean"]},
            "default": {"type": ["string", "boolean"]},
            "required": TRUTH,
            "description": TEXT,
        },
        children={"choices": "texts"},
    ),
    "timeout": NodeRule(arguments=(1, 1)),
    "supersede": NodeRule(arguments=(1, 1), argument=TRUTH),
    "text": NodeRule(arguments=(1, 1)),
    "number": NodeRule(arguments=(1, 1), argument=WHOLE),
    "texts": NodeRule(arguments=_SOME),
}
"""Every kind of node; most have the name of their nodes."""
TOP: Final = ("job", "template", "defaults", "on", "input", "timeout", "concurrency", "supersede")


def workflow_schema() -> Mapping[str, Any]:
    """Return the JSON Schema of a workflow file's tree."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:solstice-ci:schema:workflow",
        "title": "workflow.kdl",
        "description": "The tree of a workflow file: its nodes, in order.",
        "type": "array",
        "minItems": 1,
        "items": _one_of({name: name for name in TOP}),
        "contains": {"properties": {"name": {"const": "job"}}},
        "$defs": {kind: _node(rule) for kind, rule in RULES.items()},
    }


def tree_of(nodes: Sequence[KdlNode]) -> Sequence[Mapping[str, Any]]:
    """Return the tree that the schema describes."""
    return [
        {
            "name": node.name,
            "arguments": [argument.value for argument in node.arguments],
            "properties": {item.name: item.value.value for item in node.properties},
            "children": tree_of(node.children),
        }
        for node in nodes
    ]


def _one_of(kinds: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the schema of a node with one of these names; each chooses its kind."""
    return {
        "properties": {"name": {"enum": list(kinds)}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}},
                "then": {"$ref": f"#/$defs/{kind}"},
            }
            for name, kind in kinds.items()
        ],
    }


def _node(rule: NodeRule) -> Mapping[str, Any]:
    least, most = rule.arguments
    properties: Mapping[str, Any] = (
        {"type": "object", "additionalProperties": dict(TEXT)}
        if rule.properties is None
        else {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in rule.properties.items()},
            "required": list(rule.required),
            "additionalProperties": False,
        }
    )
    children: Mapping[str, Any] = {"type": "array"}
    if rule.children is not None:
        children = {"type": "array", "items": _one_of(rule.children)} if rule.children else {"maxItems": 0}
    return {
        "type": "object",
        "required": ["name", "arguments", "properties", "children"],
        "properties": {
            "name": {"type": "string"},
            "arguments": {
                "type": "array",
                "items": dict(rule.argument),
                "minItems": least,
                **({} if most is None else {"maxItems": most}),
            },
            "properties": properties,
            "children": children,
        },
    }
