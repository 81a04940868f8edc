"""The JSON Schema rendering of the messages, for services written in other languages (`schemas/*.json`)."""

import json
from collections.abc import Mapping
from typing import Any, Final

from solstice_common.messages import MESSAGES
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def render_schemas() -> Mapping[str, bytes]:
    """File name to content of every rendered schema: `jobrequest.v1.json`, `jobstatus.v1.json`."""
    return {
        f"{model.VERSION}.json": _bytes(_document(model.VERSION, model.model_json_schema()))
        for model in MESSAGES
    }


def _document(version: str, rendered: dict[str, Any]) -> dict[str, Any]:
    definitions = rendered.pop("$defs", {})
    return {
        "$schema": DIALECT,
        "$id": f"urn:solstice-ci:schema:{version}",
        "title": version,
        "description": rendered.pop("description"),
        "$comment": f"At most {MAX_MESSAGE_BYTES} bytes of UTF-8. Services that pass a message on preserve unknown fields.",
        "type": rendered.pop("type"),
        "required": rendered.pop("required"),
        "additionalProperties": rendered.pop("additionalProperties"),
        "properties": {name: _property(schema) for name, schema in rendered["properties"].items()},
        "$defs": {name: _property(schema) for name, schema in definitions.items()},
    }


def _property(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a property without titles that only repeat names.

    Nulls that say no more than "not required" are left out too.
    """
    return {
        key: value
        for key, value in schema.items()
        if key != "title" and not (key == "default" and value is None)
    }


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
