"""The HTTP application: webhooks bypass the router, every other request goes through it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.http.server.refusals import Field
from solstice_common.telemetry.metrics import CONTENT_TYPE
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.edge import urls
from solstice_forge.edge.answers import HttpAnswer, response
from solstice_forge.edge.webhooks import Webhooks, broken
from solstice_forge.inbox.protocol import WebhookInbox
from solstice_forge.metrics import Metrics
from solstice_forge.settings import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AppParts:
    """The parts that the application is wired to."""

    inbox: WebhookInbox
    sources: Mapping[str, WebhookSource]
    metrics: Metrics
    broker_health: Callable[[], BrokerHealth]
    relay_problem: Callable[[], str | None] = field(default=lambda: None)
    notices: Callable[[], Mapping[str, str]] = field(default=dict)
    """What `/readyz` reports although it does not affect readiness."""
    require_durable: bool = False
    """Whether `/readyz` needs a broker that is as durable as it can be."""
    clock: Callable[[], float] = time.time
    max_body_bytes: int = MAX_BODY_BYTES


def create_app(parts: AppParts, api: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the application: webhooks, probes, metrics and the routes of the API.

    Its URLs are those of `urls`, and of `api`.
    """
    inbox, sources, metrics = parts.inbox, parts.sources, parts.metrics
    webhooks = Webhooks(inbox, sources, metrics, clock=parts.clock, max_body_bytes=parts.max_body_bytes)
    probes = Probes(
        inbox,
        sources,
        metrics,
        parts.broker_health,
        parts.relay_problem,
        parts.notices,
        parts.require_durable,
    )
    app = Starlette(
        routes=[
            *urls.WEBHOOK.routes(webhooks),
            *urls.ALIVE.routes(probes.alive),
            *urls.READY.routes(probes.ready),
            *urls.METRICS.routes(probes.scraped),
            *api,
        ],
        exception_handlers={HTTPException: _http_error, Exception: _failed},
    )
    # A redirect would lose the delivery: forges do not follow one with the body.
    app.router.redirect_slashes = False

    return _WebhooksFirst(webhooks, app)


@dataclass(frozen=True, slots=True)
class _WebhooksFirst:
    """An application that passes webhooks directly on, and every other request to the router.

    The router and its wrappers around an endpoint were a quarter of the cost of a webhook.
    """

    webhooks: Webhooks
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_webhook = (
            scope["type"] == "http"
            and scope["method"] == urls.WEBHOOK.method
            and urls.source_in_path(scope["path"]) is not None
        )
        await (self.webhooks if is_webhook else self.app)(scope, receive, send)

    @property
    def max_complete_bytes(self) -> int:
        return self.webhooks.max_complete_bytes

    def take_complete(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        return self.webhooks.take_complete(name, headers, body, answer)

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        return self.webhooks.is_unproven(name, headers)


@dataclass(frozen=True, slots=True)
class Probes:
    """The answers to monitoring systems."""

    inbox: WebhookInbox
    sources: Mapping[str, WebhookSource]
    metrics: Metrics
    broker_health: Callable[[], BrokerHealth]
    relay_problem: Callable[[], str | None]
    notices: Callable[[], Mapping[str, str]]
    require_durable: bool

    async def alive(self, _request: Request) -> Response:
        health = self.broker_health()
        return response(200, {"status": "alive", "broker": health.transport, "broker_host": health.host})

    async def ready(self, _request: Request) -> Response:
        """200 when a webhook would be stored and published at once; else 503.

        A 503 names the missing parts. While the broker is unreachable webhooks are still taken, so a proxy
        must not stop sending them because of this. The notices are for the operator and do not change
        readiness.
        """
        missing: dict[str, str] = {}
        health = self.broker_health()
        if not health.connected:
            missing["broker"] = health.detail or "not connected"
        elif problem := health.blocked or self.relay_problem():
            missing["broker"] = problem
        elif self.require_durable and health.degraded is not None:
            missing |= health.notices
        backlog: int | None = None
        try:
            backlog = await self.inbox.backlog()
        except StoreUnavailable as error:
            missing["inbox"] = str(error)
        if not self.sources:
            missing["sources"] = "no webhook secret is set, so every webhook is answered with 404"
        state = {
            "status": "not ready" if missing else "ready",
            "missing": missing,
            "notices": {**self.notices(), **health.notices},
            "backlog": backlog,
        }
        return response(503 if missing else 200, state)

    async def scraped(self, _request: Request) -> Response:
        try:
            backlog = await self.inbox.backlog()
        except StoreUnavailable as error:
            raise HTTPException(503, f"the inbox cannot be counted: {error}") from error
        rendered = self.metrics.render(backlog, self.broker_health())
        return Response(rendered, media_type=CONTENT_TYPE)


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
