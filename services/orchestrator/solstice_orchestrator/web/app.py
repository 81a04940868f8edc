"""Build and serve the web application: pages, API v1, health and metrics."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from time import time
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.http.access import Access
from solstice_common.http.pages import static_files
from solstice_common.http.server.bounds import Bounds
from solstice_common.http.server.serving import http_server, listen
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.access_control import AccessControl
from solstice_orchestrator.web.api import openapi
from solstice_orchestrator.web.api.artifact_routes import ArtifactsApi, FindArchive, no_archives
from solstice_orchestrator.web.api.cache_routes import CachesApi
from solstice_orchestrator.web.api.dead_letter_routes import DeadLettersApi
from solstice_orchestrator.web.api.logs import LogApi
from solstice_orchestrator.web.api.report_routes import ReportsApi
from solstice_orchestrator.web.api.runs import RunsApi, answer
from solstice_orchestrator.web.api.scale import ScaleApi
from solstice_orchestrator.web.api.schedules import SchedulesApi
from solstice_orchestrator.web.api.watermark_routes import WatermarksApi
from solstice_orchestrator.web.api.why import ExplanationsApi, WhyApi
from solstice_orchestrator.web.api.worker_routes import WorkersApi
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.refusals import HttpRefusal
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.web.guard import SECURITY_HEADERS, Guard, NoZeroBytes
from solstice_orchestrator.web.health import Health, QueueDepths, no_depths
from solstice_orchestrator.web.pages.dead_letter_pages import DeadLetterPages
from solstice_orchestrator.web.pages.routes import Pages
from solstice_orchestrator.worker.caches.cache_store import CacheStore

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 3
_DEFAULT: Final = Bounds()


_CODES = {404: "not_found", 405: "method_not_allowed", 503: "unavailable"}


def _uncounted(_reason: str) -> None:
    pass


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
    intake_problem: Callable[[], str | None] = lambda: None,
    require_durable: bool = False,
    notices: Mapping[str, str] = MappingProxyType({}),
    queue_depths: QueueDepths = no_depths,
    dead_letters: DeadLetterAccess | None = None,
    find_archive: FindArchive = no_archives,
    caches: CacheStore | None = None,
) -> Starlette:
    """Build the whole application.

    `access` decides which callers it answers. It answers to loopback names, `allowed_hosts` (names without
    port) and the host of `public_url`. The server calls `streams.close()` before shutting down; else open
    event streams hold it up until its grace is over. Without `dead_letters`, questions about them are 503.
    `find_archive` finds the archives of artifacts, and `caches` has the caches.
    `unfit` says why this machine takes no work, and `intake_problem` why no request arrives, for `/readyz`. With `require_durable`, `/readyz` also needs a
    broker that is as durable as it can be. It shows `notices` beside those of access and broker.
    """
    streams = OpenStreams() if streams is None else streams
    pages = Pages(store, streams, version=version, deliveries_url=deliveries_url, clock=clock)
    errors = _ErrorAnswers(pages)
    health = Health(
        store,
        broker_health,
        metrics,
        version,
        unfit=unfit,
        intake_problem=intake_problem,
        notices=lambda: {**access.notices(), **notices},
        require_durable=require_durable,
        queue_depths=queue_depths,
    )
    return Starlette(
        routes=[
            *health.routes(),
            Mount("/api/v1", routes=_api_routes(store, streams, dead_letters, find_archive, caches)),
            openapi.route(),
            *pages.routes(),
            *DeadLetterPages(dead_letters, streams, queue_depths, pages.text).routes(),
            static_files("solstice_orchestrator.web"),
        ],
        middleware=[
            Middleware(Guard, allowed_hosts=_hosts(public_url, allowed_hosts)),
            Middleware(AccessControl, access=access, refused=errors.refused),
            Middleware(NoZeroBytes, refused=errors.refused),
        ],
        exception_handlers={
            HTTPException: errors.http_error,
            StoreUnavailable: errors.store_unavailable,
            Exception: errors.bug,
        },
    )


def _hosts(public_url: str | None, allowed_hosts: Collection[str]) -> Collection[str]:
    public_host = urlsplit(public_url).hostname if public_url else None
    return {*allowed_hosts, *([public_host] if public_host else [])}


def _api_routes(
    store: JobStore,
    streams: OpenStreams,
    dead_letters: DeadLetterAccess | None,
    find_archive: FindArchive,
    caches: CacheStore | None,
) -> list[BaseRoute]:
    return [
        *RunsApi(store, streams).routes(),
        *LogApi(store, streams).routes(),
        *ArtifactsApi(store, find_archive).routes(),
        *CachesApi(caches).routes(),
        *ReportsApi(store).routes(),
        *ExplanationsApi(store).routes(),
        *WhyApi(store).routes(),
        *ScaleApi(store).routes(),
        *WatermarksApi(store).routes(),
        *WorkersApi(store, streams).routes(),
        *SchedulesApi(store, streams).routes(),
        *DeadLettersApi(dead_letters).routes(),
    ]


class _ErrorAnswers:
    """Answers with an error: JSON below `/api/`, a page elsewhere."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def refused(self, request: Request, status: int, code: str, message: str) -> Response:
        if request.url.path.startswith("/api/"):
            return answer({"error": {"code": code, "message": message}}, status=status)
        return self._pages.error(status, message)

    def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  registered for nothing else
        code, message = (
            (error.code, error.detail)
            if isinstance(error, HttpRefusal)
            else (_CODES.get(error.status_code, "error"), f"{request.url.path}: {error.detail}.")
        )
        response = self.refused(request, error.status_code, code, message)
        response.headers.update(error.headers or {})
        return response

    def store_unavailable(self, request: Request, error: Exception) -> Response:
        return self.refused(request, 503, "unavailable", f"{error}. Nothing was changed; try again later.")

    def bug(self, request: Request, error: Exception) -> Response:
        log.error(LogEvent.WEB_REQUEST_FAILED, path=request.url.path, method=request.method, exc_info=error)
        response = self.refused(
            request, 500, "internal", "Something broke here; the orchestrator's log says what."
        )
        # Starlette answers bugs outside of all middleware, so the guard does not add these headers.
        response.headers.update(SECURITY_HEADERS)
        return response


@asynccontextmanager
async def serving(
    app: ASGIApp,
    streams: OpenStreams,
    *,
    host: str,
    port: int,
    bounds: Bounds = _DEFAULT,
    refused: Callable[[str], None] = _uncounted,
) -> AsyncIterator[str]:
    """Serve until left; yield the base URL (with the real port for port 0).

    Leaving ends open event streams and lets other requests finish for GRACE_SECONDS. Raises ConfigurationError when
    the server cannot listen on the address.
    """
    listening = listen(host, port, named="ORCHESTRATOR_HOST, ORCHESTRATOR_PORT")
    shown_host = f"[{host}]" if ":" in host else host
    server = http_server(app, bounds, grace_seconds=GRACE_SECONDS, refused=refused)
    # Not a TaskGroup: an exception of the caller's block must leave it unchanged, not in an exception group.
    task = asyncio.create_task(server.serve([listening]), name="web-server")
    try:
        await server.serving.wait()
        if not task.done():
            yield f"http://{shown_host}:{listening.getsockname()[1]}"
    finally:
        streams.close()
        server.should_exit = True
        await task
