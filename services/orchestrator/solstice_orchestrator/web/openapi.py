"""API v1 as an OpenAPI 3.1 document: one line per operation, its words from the docstring of what serves it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from solstice_common import openapi
from solstice_common.openapi import JSON, Node, answer, query_of, refusals, security
from solstice_common.tokens import Scope
from solstice_orchestrator.web import documents
from solstice_orchestrator.web.api import Api
from solstice_orchestrator.web.documents import Model
from solstice_orchestrator.web.why_api import WhyApi
from solstice_orchestrator.web.workers_api import WorkersApi

PREFIX: Final = "/api/v1"
PATH: Final = "/openapi.json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
ORDERS: Final = ("pause", "resume", "drain", "quarantine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked; `gives` is a model, or a media type for what is no JSON."""

    path: str
    """Below `/api/v1`."""
    serves: Callable[..., Any]
    gives: Model | str
    query: type[BaseModel] | None = None
    status: int = 200
    changes: bool = False
    """Whether it is a POST, and needs `operate`."""


OPERATIONS: Final = (
    Operation(path="/runs", serves=Api.runs, gives=documents.RunPage, query=documents.RunsQuery),
    Operation(path="/runs/{run_id}", serves=Api.run, gives=documents.WholeRun),
    Operation(path="/runs/{run_id}/events", serves=Api.run_events, gives=EVENTS),
    Operation(path="/runs/{run_id}/why", serves=WhyApi.run, gives=documents.WhyRun),
    Operation(
        path="/runs/{run_id}/cancel",
        serves=Api.cancel_run,
        gives=documents.WholeRun,
        status=202,
        changes=True,
    ),
    Operation(
        path="/runs/{run_id}/approve",
        serves=Api.approve_run,
        gives=documents.WholeRun,
        status=202,
        changes=True,
    ),
    Operation(
        path="/runs/{run_id}/rerun", serves=Api.rerun, gives=documents.WholeRun, status=201, changes=True
    ),
    Operation(path="/requests/{request_id}", serves=Api.request, gives=documents.WholeRun),
    Operation(path="/jobs", serves=Api.jobs, gives=documents.Jobs, query=documents.JobsQuery),
    Operation(path="/jobs/{job_id}", serves=Api.job, gives=documents.WholeJob),
    Operation(path="/jobs/{job_id}/log", serves=Api.log, gives=documents.LogPart, query=documents.LogQuery),
    Operation(path="/jobs/{job_id}/log.txt", serves=Api.log_text, gives=TEXT, query=documents.PlainLogQuery),
    Operation(
        path="/jobs/{job_id}/log/events", serves=Api.log_events, gives=EVENTS, query=documents.StreamQuery
    ),
    Operation(path="/jobs/{job_id}/why", serves=WhyApi.job, gives=documents.WhyJob),
    Operation(
        path="/jobs/{job_id}/cancel", serves=Api.cancel_job, gives=documents.Job, status=202, changes=True
    ),
    Operation(path="/events", serves=Api.events, gives=EVENTS),
    Operation(path="/workers", serves=WorkersApi.workers, gives=documents.Workers),
    Operation(path="/workers/events", serves=WorkersApi.events, gives=EVENTS),
    Operation(path="/workers/{worker_id}", serves=WorkersApi.worker, gives=documents.Worker),
    Operation(
        path="/workers/{worker_id}/{order}",
        serves=WorkersApi.steer,
        gives=documents.Worker,
        query=documents.OrderQuery,
        status=202,
        changes=True,
    ),
)


def document() -> Node:
    """The document as an object."""
    paths: Node = {}
    for operation in OPERATIONS:
        method = "post" if operation.changes else "get"
        paths.setdefault(PREFIX + operation.path, {})[method] = _described(operation)
    return openapi.document(
        title="Solstice CI: orchestrator",
        description="Runs, jobs, their logs and workers; the pages show the same.",
        paths=paths,
        models=documents.MODELS,
        headers=openapi.HEADERS,
    )


def render() -> bytes:
    """The document as it is served and checked in."""
    return openapi.text_of(document())


def route() -> Route:
    """Where everybody may have it."""
    rendered = render()

    async def served(_: Request) -> Response:
        return Response(rendered, media_type=JSON)

    return Route(PATH, served)


def _described(operation: Operation) -> Node:
    scope = Scope.OPERATE if operation.changes else Scope.READ
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [*map(_named, names), *(query_of(operation.query) if operation.query else ())]
    refused = {
        **({"400": answer("A parameter is wrong.", documents.Problem)} if operation.query else {}),
        **refusals(scope, documents.Problem),
        **({"404": answer("There is no such thing.", documents.Problem)} if names else {}),
        **(
            {"409": answer("It cannot be done as it stands.", documents.Problem)} if operation.changes else {}
        ),
        "503": answer("The database does not answer.", documents.Problem),
    }
    return {
        "operationId": "_".join(operation.serves.__qualname__.split(".")).lower(),
        "summary": str(operation.serves.__doc__).partition("\n")[0],
        "security": security(scope),
        **({"parameters": parameters} if parameters else {}),
        "responses": {str(operation.status): _given(operation), **refused},
    }


def _given(operation: Operation) -> Node:
    if isinstance(operation.gives, str):
        return {"description": "As it comes.", "content": {operation.gives: {"schema": {"type": "string"}}}}
    return answer(str(operation.gives.__doc__), operation.gives)


def _named(name: str) -> Node:
    choice = {"enum": list(ORDERS)} if name == "order" else {"minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **choice}}
