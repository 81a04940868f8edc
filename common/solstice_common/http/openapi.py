"""Owns the common parts of both services' OpenAPI 3.1 documents. Pure. Source: spec.openapis.org/oas/v3.1.1."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from solstice_common.http.tokens import TokenScope

Node = dict[str, Any]

JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{model}"

WWW_AUTHENTICATE: Final = "WWW-Authenticate"
RETRY_AFTER: Final = "Retry-After"
HEADERS: Final[Mapping[str, Node]] = {
    WWW_AUTHENTICATE: {"description": "What to send: `Bearer`.", "schema": {"type": "string"}},
    RETRY_AFTER: {
        "description": "Seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 1},
    },
}


def document(
    *,
    title: str,
    description: str,
    paths: Node,
    models: Iterable[type[BaseModel]],
    headers: Mapping[str, Node],
) -> Node:
    """Return the whole document; `models` are those that the paths refer to."""
    _, rendered = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": "1",
            "description": description,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: plain(schema) for name, schema in sorted(rendered["$defs"].items())},
            "headers": dict(headers),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `solstice token create NAME --scope SCOPE`. While there is none, programs on "
                    "the service's own machine need none.",
                }
            },
        },
    }


def text_of(shown: Node) -> bytes:
    """Return the document as text, as it is served and stored in the repository."""
    return json.dumps(shown, indent=2, ensure_ascii=False).encode() + b"\n"


def security(scope: TokenScope) -> list[Node]:
    """Return the security requirement: a token with that scope."""
    return [{"token": [scope.value]}]


def answer(description: str, model: type[BaseModel], *headers: str) -> Node:
    """Return an answer in JSON."""
    header_refs = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    return {
        "description": description,
        **({"headers": header_refs} if header_refs else {}),
        "content": content(model),
    }


def content(model: type[BaseModel]) -> Node:
    """JSON of that model."""
    return {JSON: {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def refusals(scope: TokenScope, problem: type[BaseModel]) -> Node:
    """Return the answers for a caller without a suitable token."""
    return {
        "401": answer("No token, or one that is not valid.", problem, WWW_AUTHENTICATE),
        "403": answer(f"The token lacks the scope `{scope.value}`.", problem, WWW_AUTHENTICATE),
    }


def query_of(model: type[BaseModel]) -> list[Node]:
    """Return the parameters of a query; a null value becomes an absent parameter."""
    shown = model.model_json_schema(ref_template=_REF)
    return [
        _parameter(name, schema, required=name in shown.get("required", ()))
        for name, schema in shown["properties"].items()
    ]


def plain(schema: Any) -> Any:
    """Return the schema without titles that repeat names, and defaults that mean "not required"."""
    if isinstance(schema, dict):
        return {
            key: {name: plain(inner) for name, inner in value.items()}
            if key == "properties"
            else plain(value)
            for key, value in schema.items()
            if key != "title" and not (key == "default" and value is None)
        }
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


def _parameter(name: str, schema: Node, *, required: bool) -> Node:
    description = schema.pop("description")
    options = [option for option in schema.pop("anyOf", [schema]) if option != {"type": "null"}]
    return {
        "name": name,
        "in": "query",
        "description": description,
        **({"required": True} if required else {}),
        "schema": plain(options[0]),
    }
