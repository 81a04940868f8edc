"""Health, readiness and metrics of forge-integration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.telemetry.metrics import CONTENT_TYPE
from solstice_forge.decisions.sources import Source
from solstice_forge.edge.answers import response
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Probes:
    """Answers the requests of monitoring systems."""

    inbox: Inbox
    sources: Mapping[str, Source]
    metrics: Metrics
    broker_health: Callable[[], BrokerHealth]
    relay_problem: Callable[[], str | None]
    notices: Callable[[], Mapping[str, str]]

    async def alive(self, _request: Request) -> Response:
        return response(200, {"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        """200 when a webhook would be stored and published at once; else 503.

        A 503 names what is missing. While the broker is unreachable webhooks are still taken, so a proxy must not stop
        sending them because of this. The notices are for the operator and do not change readiness.
        """
        missing: dict[str, str] = {}
        health = self.broker_health()
        if not health.connected:
            missing["broker"] = health.detail or "not connected"
        elif problem := health.blocked or self.relay_problem():
            missing["broker"] = problem
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
            "notices": dict(self.notices()),
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
