"""Lists the routes of the API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.http.access import Access
from solstice_common.http.tokens import TokenScope
from solstice_common.tracing.samplers import Sampler
from solstice_forge.api.access import guarded
from solstice_forge.api.delivery_log import DecisionLog
from solstice_forge.api.jobs import Jobs
from solstice_forge.api.openapi import render
from solstice_forge.edge.answers import JSON
from solstice_forge.inbox.log import DeliveryLog
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.metrics import Metrics


class ApiInbox(Inbox, DeliveryLog, Protocol):
    """The parts of the inbox that the API needs: to store and to read deliveries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRules:
    """The access rules and limits of the API."""

    access: Access
    per_minute: int
    """The number of jobs per minute that one token may request."""
    max_backlog: int
    """When so many requests wait in the inbox and the queue, the API accepts no more."""
    queued: Callable[[], int] = lambda: 0
    """The number of requests in the queue."""
    sampler: Sampler | None = None
    """Which requests are traced; None when none is."""


def api_routes(inbox: ApiInbox, rules: ApiRules, metrics: Metrics) -> list[BaseRoute]:
    """`POST /api/v1/jobs`, `GET /api/v1/deliveries[/{id}]`, and the public `GET /openapi.json`."""
    jobs = Jobs(
        inbox=inbox,
        metrics=metrics,
        per_minute=rules.per_minute,
        max_backlog=rules.max_backlog,
        queued=rules.queued,
        sampler=rules.sampler,
    )
    decisions = DecisionLog(log=inbox)
    rendered = render()

    async def openapi(_: Request) -> Response:
        return Response(rendered, media_type=JSON)

    return [
        Route("/openapi.json", openapi),
        Route("/api/v1/jobs", guarded(rules.access, TokenScope.ENQUEUE, jobs.enqueue), methods=["POST"]),
        Route("/api/v1/deliveries", guarded(rules.access, TokenScope.READ, decisions.page)),
        # A sender's id may hold a slash.
        Route("/api/v1/deliveries/{id:path}", guarded(rules.access, TokenScope.READ, decisions.one)),
    ]
