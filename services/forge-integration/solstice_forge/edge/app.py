"""The HTTP application: webhooks bypass the router, every other request goes through it."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_common.broker.protocol import BrokerHealth
from solstice_forge.decisions.sources import Source
from solstice_forge.edge.answers import Field, HttpAnswer, response
from solstice_forge.edge.probes import Probes
from solstice_forge.edge.webhooks import Webhooks, broken
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.metrics import Metrics
from solstice_forge.settings import MAX_BODY_BYTES

_WEBHOOK: Final = re.compile(r"/webhooks/[^/]+/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppParts:
    """The parts that the application is wired to."""

    inbox: Inbox
    sources: Mapping[str, Source]
    metrics: Metrics
    broker_health: Callable[[], BrokerHealth]
    relay_problem: Callable[[], str | None] = field(default=lambda: None)
    notices: Callable[[], Mapping[str, str]] = field(default=dict)
    """What `/readyz` reports although it does not affect readiness."""
    clock: Callable[[], float] = time.time
    max_body_bytes: int = MAX_BODY_BYTES


def create_app(parts: AppParts, api: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the application: webhooks, probes, metrics and the routes of the API.

    The paths are `POST /webhooks/{source}`, `GET /healthz`, `/readyz`, `/metrics`, and those of `api`.
    """
    inbox, sources, metrics = parts.inbox, parts.sources, parts.metrics
    webhooks = Webhooks(inbox, sources, metrics, clock=parts.clock, max_body_bytes=parts.max_body_bytes)
    probes = Probes(inbox, sources, metrics, parts.broker_health, parts.relay_problem, parts.notices)
    app = Starlette(
        routes=[
            *_both("/webhooks/{source}", webhooks, "POST"),
            *_both("/healthz", probes.alive, "GET"),
            *_both("/readyz", probes.ready, "GET"),
            *_both("/metrics", probes.scraped, "GET"),
            *api,
        ],
        exception_handlers={HTTPException: _http_error, Exception: _failed},
    )
    # A redirect would lose the delivery: forges do not follow one with the body.
    app.router.redirect_slashes = False

    return _WebhooksFirst(webhooks, app)


@dataclass(frozen=True, slots=True)
class _WebhooksFirst:
    """Passes webhooks directly to their application, and every other request to the router.

    The router and its wrappers around an endpoint were a quarter of the cost of a webhook.
    """

    webhooks: Webhooks
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_webhook = (
            scope["type"] == "http" and scope["method"] == "POST" and _WEBHOOK.fullmatch(scope["path"])
        )
        await (self.webhooks if is_webhook else self.app)(scope, receive, send)

    @property
    def whole_bytes(self) -> int:
        return self.webhooks.whole_bytes

    def take_whole(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        return self.webhooks.take_whole(name, headers, body, answer)

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        return self.webhooks.is_unproven(name, headers)


def _both(
    path: str, endpoint: Callable[[Request], Awaitable[Response]] | ASGIApp, method: str
) -> list[Route]:
    """Return the route with and without a slash at the end."""
    return [Route(one, endpoint, methods=[method]) for one in (path, f"{path}/")]


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer the router's 404 and 405 in the JSON of all other answers."""
    assert isinstance(error, HTTPException)  # noqa: S101  for the type checker: registered for it alone
    sentence, reason = error.detail, "failed"
    match error.status_code:
        case 404:
            sentence, reason = "nothing is here: webhooks go to /webhooks/SOURCE", "not_found"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            sentence = f"{request.method} is not for this address, use {allowed}: set the webhook to POST"
            reason = "method_not_allowed"
        case _:
            pass
    return response(error.status_code, {"error": sentence, "reason": reason}, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    answer = broken(request.url.path, error)
    return response(answer.status, answer.content)
