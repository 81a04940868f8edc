"""API v1 as an OpenAPI 3.1 document, rendered from its operations."""

import inspect
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from solstice_common.http import openapi
from solstice_common.http.openapi import JSON, Node, answer, content, query_of, refusals, security
from solstice_common.http.tokens import TokenScope
from solstice_orchestrator.web.api.operations import CHOICES, EVENTS, LINKS, OPERATIONS, Operation
from solstice_orchestrator.web.api.schedule_requests import ScheduleEdit, ScheduleInput
from solstice_orchestrator.web.formats import api_models, report_models

PREFIX: Final = "/api/v1"
PATH: Final = "/openapi.json"


def document() -> Node:
    """The document as an object."""
    paths: Node = {}
    for operation in OPERATIONS:
        method = "post" if operation.changes else "get"
        paths.setdefault(PREFIX + operation.path, {})[method] = _described(operation)
    return openapi.document(
        title="Solstice CI: orchestrator",
        description="Runs, jobs, their logs, workers and schedules; the pages show the same.",
        paths=paths,
        models=(*api_models.MODELS, *report_models.MODELS, ScheduleInput, ScheduleEdit),
        headers=openapi.HEADERS,
    )


def render() -> bytes:
    """The document as it is served and stored in the repository."""
    return openapi.text_of(document())


def route() -> Route:
    """The public route of the document."""
    rendered = render()

    async def served(_: Request) -> Response:
        return Response(rendered, media_type=JSON)

    return Route(PATH, served)


def _described(operation: Operation) -> Node:
    scope = TokenScope.OPERATE if operation.changes else TokenScope.READ
    names = operation.names
    parameters = [*map(_named, names), *(query_of(operation.query) if operation.query else ())]
    refused = {
        "400": answer("A parameter is wrong, unknown, or there twice.", api_models.Problem),
        **refusals(scope, api_models.Problem),
        **({"404": answer("There is no such thing.", api_models.Problem)} if names else {}),
        **({"409": answer(operation.conflict, api_models.Problem)} if operation.conflict else {}),
        "421": answer("It was asked by a name that is not the server's.", api_models.Problem),
        "503": answer("The database does not answer.", api_models.Problem),
    }
    if operation.body is not None:
        refused |= {
            "400": answer("What was sent is wrong.", api_models.Problem),
            "408": answer("The body did not come in time.", api_models.Problem),
            "413": answer("The body is too large.", api_models.Problem),
            "415": answer("The body is not sent as JSON.", api_models.Problem),
        }
    success = _success(operation)
    if links := _links(operation):
        success["links"] = links
    if operation.parts:
        parameters.append(_RANGE)
        refused["206"] = {**success, "description": "Those bytes.", "headers": _PARTS}
        refused["416"] = answer("It has no such bytes.", api_models.Problem)
    summary, _, description = (inspect.getdoc(operation.serves) or "").partition("\n\n")
    return {
        "operationId": operation.name,
        "summary": summary,
        **({"description": description} if description else {}),
        "security": security(scope),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, "content": content(operation.body)}} if operation.body else {}),
        "responses": {str(operation.status): success, **refused},
    }


def _success(operation: Operation) -> Node:
    if isinstance(operation.gives, str):
        return {
            "description": operation.description,
            "content": {operation.gives: {"schema": {"type": "string"}}},
        }
    return answer(str(operation.gives.__doc__), operation.gives)


def _links(operation: Operation) -> Node:
    """Link to every operation whose path parameters are all in the answer.

    The caller chooses the order for a worker.
    """
    if isinstance(operation.gives, str):
        return {}
    leads = LINKS.get(operation.gives, {})
    links = {
        other.name: {
            "operationId": other.name,
            "parameters": {name: f"$response.body#{leads[name]}" for name in sorted(names)},
        }
        for other in OPERATIONS
        if other.gives != EVENTS and (names := set(other.names) - CHOICES.keys()) and leads.keys() >= names
    }
    if "next" in operation.gives.model_fields:
        links["next"] = {"operationId": operation.name, "parameters": {"after": "$response.body#/next"}}
    return links


def _named(name: str) -> Node:
    choice = {"enum": list(CHOICES[name])} if name in CHOICES else {"minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **choice}}


_RANGE: Final[Node] = {
    "name": "Range",
    "in": "header",
    "description": "Only these bytes (RFC 9110, section 14): `bytes=0-1023`, `bytes=1024-`, `bytes=-1024`. Several ranges are "
    "answered with all of it.",
    "schema": {"type": "string"},
}
_PARTS: Final[Node] = {
    "Content-Range": {
        "description": "Which bytes, of how many: `*` while it is written.",
        "schema": {"type": "string"},
    }
}
