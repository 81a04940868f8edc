"""The composition root of forge-integration: opens, wires, runs and closes all parts."""

import asyncio
import os
import random
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from starlette.routing import BaseRoute

from solstice_common import __version__
from solstice_common.broker import open_broker
from solstice_common.broker.protocol import Broker
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.http.access import Access, access_rules, logged_access
from solstice_common.http.server.serving import HttpServer, bounds_of, http_server, listen
from solstice_common.runtime.process import tune_garbage_collection
from solstice_common.settings import known_broker_url, memory_notice, without_password
from solstice_common.signing.signer import signing
from solstice_common.topology import asking_topology, jobs_route
from solstice_common.tracing.otlp import SpanExporter, open_exporter
from solstice_common.tracing.trace_export import TracedBacklog, TraceEvents, TraceExport
from solstice_forge.api.request_delivery import API_SOURCE_NAME
from solstice_forge.api.routes import ApiRules, api_routes
from solstice_forge.config import configured_sources
from solstice_forge.decisions.sources import WebhookSource, traced_sources
from solstice_forge.edge.app import AppParts, create_app
from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.inbox.retention import run_retention
from solstice_forge.inbox.traced_requests import StoredTimes
from solstice_forge.log_events import LogEvent
from solstice_forge.lookups.lookup_service import LookupService
from solstice_forge.metrics import Metrics
from solstice_forge.pages.delivery_pages import DeliveryPages, Statuses, no_statuses
from solstice_forge.reconcile.rounds import Reconciler
from solstice_forge.relay.inbox_relay import Relay
from solstice_forge.relay.queue_depth import PolledQueueDepth, run_queue_depth
from solstice_forge.relay.request_trace_backlog import PublishClock, RequestTraceBacklog
from solstice_forge.remote.http import Remote, open_remotes
from solstice_forge.remote.source_access import access_of, timeouts_of
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.status_service import reporting
from solstice_forge.statuses.status_spans import StatusSpans

if TYPE_CHECKING:
    from solstice_forge.edge.fast_path import CompleteRequestProtocol

log = structlog.get_logger(__name__)

Listening = Callable[[str, int], None]
"""Called with the address and port once webhooks can be sent there."""


def _do_nothing(_host: str, _port: int) -> None:
    pass


async def serve(
    settings: ForgeSettings,
    *,
    stop: asyncio.Event,
    listening: Listening = _do_nothing,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Take webhooks and publish their requests, until `stop` is set.

    The file of sources may refer to variables of `environ`.

    At the end it accepts no new connections, answers open requests, and publishes pending requests while the
    broker accepts them; each of the last two may take `forge_grace_seconds`. The rest stays in the inbox for
    the next start. Raises ConfigurationError, StoreUnavailable or SchemaTooNew at the start, never for an
    unreachable broker.
    """
    sources, metrics = (
        traced_sources(configured_sources(settings, environ), settings.trace_sampler),
        Metrics(),
    )
    if API_SOURCE_NAME in sources:
        raise ConfigurationError(
            f"the source name {API_SOURCE_NAME!r} is taken by POST /api/v1/jobs: choose another"
        )
    access = access_rules(settings)
    traced = settings.trace_sampler is not None
    status_spans = StatusSpans(lambda: metrics.spans("dropped", 1)) if traced else None
    with listen(settings.forge_host, settings.forge_port, named="FORGE_HOST, FORGE_PORT") as listener:
        async with (
            logged_access(access, service="forge-integration"),
            open_inbox(settings.forge_inbox_url) as inbox,
            open_broker(
                settings.amqp_url,
                name="forge-integration",
                on_dropped=None if settings.dead_letter_enabled else metrics.dead_letter_dropped,
                nats_monitor_url=settings.nats_monitor_url,
                nats_sync_always=settings.nats_sync_always,
            ) as broker,
            open_remotes(
                [found for source in sources.values() if (found := access_of(source)) is not None],
                timeouts=timeouts_of(settings.forge_call_seconds),
            ) as remotes,
            open_exporter(settings, service="forge-integration") as exporter,
            reporting(
                settings, sources=sources, remotes=remotes, broker=broker, metrics=metrics, spans=status_spans
            ) as statuses,
        ):
            inbox.stored_times = StoredTimes() if traced else None
            components = _Components(
                settings=settings,
                sources=sources,
                metrics=metrics,
                rng=random.Random(),  # noqa: S311  jitter, not a secret
                access=access,
                inbox=inbox,
                broker=broker,
                remotes=remotes,
                statuses=no_statuses if statuses is None else statuses.shown,
                exporter=exporter,
                status_spans=status_spans,
            )
            await _work(components, listener, stop, listening)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Components:
    """The open parts of a running service."""

    settings: ForgeSettings
    sources: Mapping[str, WebhookSource]
    metrics: Metrics
    rng: random.Random
    access: Access
    inbox: InboxStore
    broker: Broker
    remotes: Mapping[str, Remote]
    statuses: Statuses
    exporter: SpanExporter | None
    """None while nothing is traced; then the spans are None too."""
    status_spans: StatusSpans | None


async def _work(
    components: _Components, listener: socket.socket, stop: asyncio.Event, listening: Listening
) -> None:
    """Run the loops and the server until `stop` is set, and end them in order."""
    settings, inbox = components.settings, components.inbox
    relay = _relay(components)
    queued = PolledQueueDepth(components.broker, settings, components.metrics)
    server = _server(components, relay, queued)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run, name=name) for name, run in _loops(components, queued).items()]
        relaying = tasks.create_task(relay.run(), name="forge-relay")
        serving = tasks.create_task(server.serve(sockets=[listener]), name="forge-http")
        host, port = listener.getsockname()[:2]
        log.info(
            LogEvent.SERVICE_STARTED,
            host=host,
            port=port,
            sources=sorted(components.sources),
            broker=components.broker.url,
            inbox=without_password(settings.forge_inbox_url),
        )
        tune_garbage_collection()
        listening(host, port)
        await stop.wait()
        server.should_exit = True
        await serving
        for task in running:
            task.cancel()
        await _end(relay, relaying, settings.forge_grace_seconds)
        log.info(LogEvent.SERVICE_DRAINED, pending=await _backlog(inbox))


def _relay(components: _Components) -> Relay:
    broker, settings = components.broker, components.settings
    return Relay(
        inbox=components.inbox,
        broker=signing(broker, settings),
        route=jobs_route(settings),
        topology=asking_topology(settings),
        metrics=components.metrics,
        rng=components.rng,
        publish_clock=None if components.exporter is None else PublishClock(),
    )


def _server(components: _Components, relay: Relay, queued: PolledQueueDepth) -> HttpServer:
    """Return the server of webhooks, the API and the pages."""
    settings, broker, access = components.settings, components.broker, components.access
    in_memory = memory_notice("inbox", "FORGE_INBOX_URL", settings.forge_inbox_url)
    parts = AppParts(
        inbox=components.inbox,
        sources=components.sources,
        metrics=components.metrics,
        broker_health=lambda: broker.health,
        relay_problem=lambda: relay.problem,
        notices=lambda: {**access.notices(), **queued.notices, **in_memory},
        require_durable=settings.broker_require_durable,
        max_body_bytes=settings.forge_max_body_bytes,
    )
    return http_server(
        create_app(parts, _api_and_pages(components, queued)),
        bounds_of(settings, largest_body=settings.forge_max_body_bytes),
        grace_seconds=settings.forge_grace_seconds,
        refused=components.metrics.http_refused,
        protocol=_complete_request_protocol,
    )


def _loops(components: _Components, queued: PolledQueueDepth) -> Mapping[str, Coroutine[None, None, None]]:
    """Return the loops beside the relay and the server, by name."""
    settings, inbox, remotes = components.settings, components.inbox, components.remotes
    sources, metrics, rng = components.sources, components.metrics, components.rng
    lookups = LookupService(inbox=inbox, sources=sources, remotes=remotes, metrics=metrics, rng=rng)
    loops = {
        "forge-lookups": lookups.run(),
        "forge-retention": run_retention(
            inbox,
            body_days=settings.forge_retention_days,
            memory_days=settings.forge_memory_days,
            rng=rng,
        ),
        "forge-queue-depth": run_queue_depth(queued, rng=rng),
    }
    if settings.forge_reconcile_minutes and remotes:
        reconciler = Reconciler(inbox=inbox, sources=sources, remotes=remotes, metrics=metrics, rng=rng)
        loops["forge-reconcile"] = reconciler.run(settings.forge_reconcile_minutes * 60.0)
    return {**loops, **_traces(components)}


def _traces(components: _Components) -> Mapping[str, Coroutine[None, None, None]]:
    """Return the loops that send spans, by name; none while nothing is traced."""
    settings, exporter, spans = components.settings, components.exporter, components.status_spans
    if exporter is None or spans is None:
        return {}
    requests = RequestTraceBacklog(
        inbox=components.inbox,
        route=jobs_route(settings),
        broker=known_broker_url(settings.amqp_url),
        api_source=API_SOURCE_NAME,
    )

    def export(backlog: TracedBacklog[int]) -> Coroutine[None, None, None]:
        events = TraceEvents(
            paused=LogEvent.TRACES_PAUSED,
            resumed=LogEvent.TRACES_RESUMED,
            refused=LogEvent.TRACES_REFUSED,
            crashed=LogEvent.TRACES_CRASHED,
        )
        return TraceExport(
            backlog, exporter, count=components.metrics.spans, events=events, rng=components.rng
        ).run()

    return {"forge-request-traces": export(requests), "forge-status-traces": export(spans)}


def _api_and_pages(components: _Components, queued: PolledQueueDepth) -> list[BaseRoute]:
    """Return the routes of the API and the pages."""
    settings, inbox, access = components.settings, components.inbox, components.access
    rules = ApiRules(
        access=access,
        per_minute=settings.forge_api_per_minute,
        max_backlog=settings.forge_api_backlog,
        queued=lambda: queued.count,
        sampler=settings.trace_sampler,
    )
    pages = DeliveryPages(
        inbox,
        access,
        sources=sorted(components.sources),
        version=__version__,
        public_url=settings.public_url,
        statuses=components.statuses,
        reconcile_state=inbox.reconcile_state,
    )
    return [*api_routes(inbox, rules, components.metrics), *pages.routes()]


async def _end(relay: Relay, relaying: asyncio.Task[None], grace_seconds: float) -> None:
    if relay.is_leader:
        relay.finish()
        await asyncio.wait({relaying}, timeout=grace_seconds)
    relaying.cancel()


async def _backlog(inbox: Inbox) -> int | None:
    try:
        return await inbox.backlog()
    except StoreUnavailable:
        return None


def _complete_request_protocol() -> "type[CompleteRequestProtocol]":
    from solstice_forge.edge.fast_path import CompleteRequestProtocol  # noqa: PLC0415  as `http_server` says

    return CompleteRequestProtocol
