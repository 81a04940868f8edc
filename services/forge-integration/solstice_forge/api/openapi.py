"""The API as an OpenAPI 3.1 document, rendered from its models."""

from collections.abc import Mapping
from typing import Final

from solstice_common.http import openapi
from solstice_common.http.openapi import RETRY_AFTER, Node, answer, content, query_of, refusals, security
from solstice_common.http.tokens import TokenScope
from solstice_forge.api.api_models import (
    Deliveries,
    DeliveriesQuery,
    JobInput,
    JobTaken,
    Problem,
    WholeDelivery,
)
from solstice_forge.api.request_delivery import KEY_PATTERN, MAX_KEY

_HEADERS: Final[Mapping[str, Node]] = {
    **openapi.HEADERS,
    "Location": {"description": "The delivery that the job became.", "schema": {"type": "string"}},
    "RateLimit-Policy": {
        "description": 'How often a token may ask: `"token";q=60;w=60` is 60 in 60 s.',
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": 'What is left of that: `"token";r=59;t=1` is 59, and one more in 1 s.',
        "schema": {"type": "string"},
    },
}
_LIMITED: Final = ("RateLimit-Policy", "RateLimit")


def document() -> Node:
    """Return the document as an object."""
    return openapi.document(
        title="Solstice CI: forge-integration",
        description="Ask for commits to be built, and read what was decided about each delivery. "
        "Webhooks of forges are no part of it: they are described in docs/webhooks.md.",
        paths={
            "/api/v1/jobs": {"post": _enqueue()},
            "/api/v1/deliveries": {"get": _deliveries()},
            "/api/v1/deliveries/{id}": {"get": _delivery()},
        },
        models=(JobInput, JobTaken, Deliveries, WholeDelivery, Problem),
        headers=_HEADERS,
    )


def render() -> bytes:
    """Return the document as it is served and stored in the repository."""
    return openapi.text_of(document())


def _enqueue() -> Node:
    return {
        "operationId": "enqueue",
        "summary": "Ask for a commit to be built",
        "description": "Durable when it is answered, whether or not the broker is there. The same key with the same body "
        "gives the same answer and one run, however often it is sent.",
        "security": security(TokenScope.ENQUEUE),
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Your own name for this request, best a UUID; with or without the quotes of a structured field.",
                "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": KEY_PATTERN},
            }
        ],
        "requestBody": {"required": True, "content": content(JobInput)},
        "responses": {
            "202": answer("It is stored.", JobTaken, "Location", *_LIMITED),
            "400": answer("The body or the key is wrong.", Problem, *_LIMITED),
            **refusals(TokenScope.ENQUEUE, Problem),
            "408": answer("The body did not come in time.", Problem, *_LIMITED),
            "413": answer("The body is too large.", Problem, *_LIMITED),
            "415": answer("The body is not sent as JSON.", Problem, *_LIMITED),
            "422": answer("The key was used for another body.", Problem, *_LIMITED),
            "429": answer("Too often for this token.", Problem, RETRY_AFTER, *_LIMITED),
            "503": answer("Too much waits for the broker, or nothing can be stored.", Problem, RETRY_AFTER),
        },
    }


def _deliveries() -> Node:
    return {
        "operationId": "listDeliveries",
        "summary": "What arrived, and what was decided about it",
        "description": "Newest first, page by page.",
        "security": security(TokenScope.READ),
        "parameters": query_of(DeliveriesQuery),
        "responses": {
            "200": answer("One page.", Deliveries),
            "400": answer("A parameter is wrong.", Problem),
            **refusals(TokenScope.READ, Problem),
            "503": answer("The inbox cannot be read.", Problem, RETRY_AFTER),
        },
    }


def _delivery() -> Node:
    return {
        "operationId": "getDelivery",
        "summary": "One delivery",
        "security": security(TokenScope.READ),
        "parameters": [
            {
                "name": "id",
                "in": "path",
                "required": True,
                "description": "Its number here, or the sender's id of it.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ],
        "responses": {
            "200": answer("Everything stored about it, except for its body.", WholeDelivery),
            **refusals(TokenScope.READ, Problem),
            "404": answer("There is no such delivery.", Problem),
            "503": answer("The inbox cannot be read.", Problem, RETRY_AFTER),
        },
    }
