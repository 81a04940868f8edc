"""Build the web application: pages, API v1, health and metrics."""

from collections.abc import Callable, Collection
from time import time
from urllib.parse import urlsplit

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.http.access import Access
from solstice_common.http.pages import static_files
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.access_control import AccessControl
from solstice_orchestrator.web.api import openapi
from solstice_orchestrator.web.api.logs import LogApi
from solstice_orchestrator.web.api.runs import Api, answer
from solstice_orchestrator.web.api.scale import ScaleApi
from solstice_orchestrator.web.api.schedules import SchedulesApi
from solstice_orchestrator.web.api.why import WhyApi
from solstice_orchestrator.web.api.workers_routes import WorkersApi
from solstice_orchestrator.web.formats.refusals import HttpRefusal
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.web.guard import SECURITY_HEADERS, Guard
from solstice_orchestrator.web.health import Health
from solstice_orchestrator.web.pages.routes import Pages
from solstice_orchestrator.web.zero_bytes import NoZeroBytes

log = structlog.get_logger(__name__)

_CODES = {404: "not_found", 405: "method_not_allowed", 503: "unavailable"}


def create_app(
    *,
    store: JobStore,
    broker_health: Callable[[], BrokerHealth],
    metrics: Metrics,
    version: str,
    access: Access,
    public_url: str | None = None,
    deliveries_url: str = "",
    allowed_hosts: Collection[str] = (),
    streams: OpenStreams | None = None,
    clock: Callable[[], float] = time,
    unfit: Callable[[], str | None] = lambda: None,
) -> Starlette:
    """Build the whole application.

    `access` decides which callers it answers. It answers to loopback names, `allowed_hosts` (names without port) and
    the host of `public_url`. The server calls `streams.close()` before shutting down; else open event streams hold it
    up until its grace is over. `unfit` says why this machine takes no work, for `/readyz`.
    """
    streams = OpenStreams() if streams is None else streams
    pages = Pages(store, streams, version=version, deliveries_url=deliveries_url, clock=clock)
    public_host = urlsplit(public_url).hostname if public_url else None
    hosts = {*allowed_hosts, *([public_host] if public_host else [])}

    def refused(request: Request, status: int, code: str, message: str) -> Response:
        if request.url.path.startswith("/api/"):
            return answer({"error": {"code": code, "message": message}}, status=status)
        return pages.error(status, message)

    def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  registered for nothing else
        if isinstance(error, HttpRefusal):
            response = refused(request, error.status_code, error.code, error.detail)
            response.headers.update(error.headers or {})
            return response
        code = _CODES.get(error.status_code, "error")
        response = refused(request, error.status_code, code, f"{request.url.path}: {error.detail}.")
        response.headers.update(error.headers or {})
        return response

    def on_store_unavailable(request: Request, error: Exception) -> Response:
        return refused(request, 503, "unavailable", f"{error}. Nothing was changed; try again later.")

    def on_bug(request: Request, error: Exception) -> Response:
        log.error(LogEvent.WEB_REQUEST_FAILED, path=request.url.path, method=request.method, exc_info=error)
        response = refused(
            request, 500, "internal", "Something broke here; the orchestrator's log says what."
        )
        # Starlette answers bugs outside of all middleware, so the guard does not add these headers.
        response.headers.update(SECURITY_HEADERS)
        return response

    return Starlette(
        routes=[
            *Health(store, broker_health, metrics, version, unfit=unfit, notices=access.notices).routes(),
            Mount(
                "/api/v1",
                routes=[
                    *Api(store, streams).routes(),
                    *LogApi(store, streams).routes(),
                    *WhyApi(store).routes(),
                    *ScaleApi(store).routes(),
                    *WorkersApi(store, streams).routes(),
                    *SchedulesApi(store, streams).routes(),
                ],
            ),
            openapi.route(),
            *pages.routes(),
            static_files("solstice_orchestrator.web"),
        ],
        middleware=[
            Middleware(Guard, allowed_hosts=hosts),
            Middleware(AccessControl, access=access, refused=refused),
            Middleware(NoZeroBytes, refused=refused),
        ],
        exception_handlers={
            HTTPException: on_http_error,
            StoreUnavailable: on_store_unavailable,
            Exception: on_bug,
        },
    )
