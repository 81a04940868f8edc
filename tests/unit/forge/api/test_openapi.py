"""The checked-in OpenAPI document equals what the service serves and the command prints."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solstice_forge.api.openapi import document, render
from solstice_forge.cli import app

CHECKED_IN = Path(__file__).parents[4] / "schemas" / "openapi" / "forge-integration.json"


def test_the_checked_in_document_is_the_rendered_one() -> None:
    assert CHECKED_IN.read_bytes() == render(), (
        f"run: forge-integration openapi > schemas/openapi/{CHECKED_IN.name}"
    )


def test_the_command_prints_it() -> None:
    assert CliRunner().invoke(app, ["openapi"]).output.encode() == render()


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_every_reference_leads_somewhere() -> None:
    shown = document()
    found = references(shown)
    assert found
    for reference in found:
        place: Any = shown
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/deliveries", "/api/v1/deliveries/{id}"])
def test_every_operation_says_which_scope_it_needs_and_how_it_refuses(path: str) -> None:
    for operation in document()["paths"][path].values():
        ((_, scopes),) = operation["security"][0].items()
        assert len(scopes) == 1
        refused = {status for status in operation["responses"] if int(status) >= 400}
        assert {"401", "403", "503"} <= refused
        for status in refused:
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}


def test_it_is_json_that_people_can_read() -> None:
    assert json.loads(render()) == document()
    assert max(map(len, render().splitlines())) < 400
