"""The common parts of OpenAPI documents: answers, parameters and tokens."""

import json
from typing import Annotated

from pydantic import BaseModel, Field

from solstice_common.http.openapi import (
    answer,
    content,
    document,
    plain,
    query_of,
    refusals,
    security,
    text_of,
)
from solstice_common.http.tokens import TokenScope


class Colour(BaseModel):
    """A colour."""

    title: Annotated[str, Field(description="Its name.")]
    shade: Annotated[int | None, Field(description="How dark.", ge=1)] = None
    tags: list[str] = []


class Query(BaseModel):
    name: Annotated[str, Field(description="Of whom.")]
    since: Annotated[int | None, Field(description="From when.", ge=1)] = None
    limit: Annotated[int, Field(description="How many.")] = 50


def test_parameter_that_may_be_null_is_one_that_may_be_left_out() -> None:
    assert query_of(Query) == [
        {
            "name": "name",
            "in": "query",
            "description": "Of whom.",
            "required": True,
            "schema": {"type": "string"},
        },
        {
            "name": "since",
            "in": "query",
            "description": "From when.",
            "schema": {"type": "integer", "minimum": 1},
        },
        {
            "name": "limit",
            "in": "query",
            "description": "How many.",
            "schema": {"type": "integer", "default": 50},
        },
    ]


def test_document_names_models_without_noise() -> None:
    shown = document(
        title="Colours",
        description="Of a rainbow.",
        paths={"/colours": {}},
        models=[Colour],
        headers={"Retry-After": {"schema": {"type": "integer"}}},
    )
    assert shown["openapi"] == "3.1.0"
    assert (shown["info"]["title"], shown["info"]["description"]) == ("Colours", "Of a rainbow.")
    assert (shown["info"]["version"], shown["info"]["license"]["identifier"]) == ("1", "Apache-2.0")
    assert shown["paths"] == {"/colours": {}}
    parts = shown["components"]
    assert parts["headers"] == {"Retry-After": {"schema": {"type": "integer"}}}
    assert (parts["securitySchemes"]["token"]["type"], parts["securitySchemes"]["token"]["scheme"]) == (
        "http",
        "bearer",
    )
    # A property may be called `title`; what pydantic calls a title is left out.
    assert parts["schemas"]["Colour"] == {
        "description": "A colour.",
        "type": "object",
        "properties": {
            "title": {"description": "Its name.", "type": "string"},
            "shade": {
                "anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}],
                "description": "How dark.",
            },
            "tags": {"default": [], "items": {"type": "string"}, "type": "array"},
        },
        "required": ["title"],
    }


def test_default_that_is_a_value_stays() -> None:
    assert plain([{"default": 0, "title": "X"}, {"default": None}]) == [{"default": 0}, {}]


def test_answer_names_its_model_and_headers() -> None:
    reference = {"schema": {"$ref": "#/components/schemas/Colour"}}
    assert content(Colour) == {"application/json": reference}
    assert answer("A colour.", Colour) == {"description": "A colour.", "content": content(Colour)}
    assert answer("Later.", Colour, "Retry-After")["headers"] == {
        "Retry-After": {"$ref": "#/components/headers/Retry-After"}
    }


def test_caller_without_the_right_token_learns_which_scope_it_needs() -> None:
    refused = refusals(TokenScope.OPERATE, Colour)
    assert set(refused) == {"401", "403"}
    assert "`operate`" in refused["403"]["description"]
    for each in refused.values():
        assert set(each["headers"]) == {"WWW-Authenticate"}
        assert each["content"] == content(Colour)
    assert security(TokenScope.READ) == [{"token": ["read"]}]


def test_text_is_for_people_and_ends_with_a_line() -> None:
    shown = {"a": "größe", "b": [1]}
    text = text_of(shown)
    assert json.loads(text) == shown
    assert "größe".encode() in text
    assert text.endswith(b"}\n")
    assert text.splitlines()[1] == '  "a": "größe",'.encode()
