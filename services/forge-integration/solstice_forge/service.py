"""The composition root of forge-integration: it opens, wires, runs and ends everything in order."""

import asyncio
import os
import random
from collections.abc import Callable

import structlog

from solstice_common import __version__
from solstice_common.broker import open_broker
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.http.access import access_rules, told_access
from solstice_common.http.serving import bounds_of, http_server, listen
from solstice_common.runtime.process import tune_garbage_collection
from solstice_common.settings import without_password
from solstice_common.topology import asking_topology, jobs_route
from solstice_forge.api.request_delivery import SOURCE
from solstice_forge.api.routes import ApiRules, api_routes
from solstice_forge.config import configured_sources
from solstice_forge.edge.app import AppParts, create_app
from solstice_forge.edge.fast_path import WholeRequestProtocol
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.inbox.retention import run_retention
from solstice_forge.log_events import LogEvent
from solstice_forge.lookups.lookup_service import LookupService
from solstice_forge.metrics import Metrics
from solstice_forge.pages.delivery_pages import DeliveryPages, no_statuses
from solstice_forge.reconcile.rounds import Reconciler
from solstice_forge.relay.inbox_relay import Relay
from solstice_forge.relay.queue_depth import QueueDepth, run_queue_depth
from solstice_forge.remote.http import open_remotes
from solstice_forge.remote.source_access import access_of, timeouts_of
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.status_service import reporting

log = structlog.get_logger("solstice_forge.service")

Listening = Callable[[str, int], None]
"""Called with the address and port once webhooks can be sent there."""


def _nothing(_host: str, _port: int) -> None:
    pass


async def serve(settings: ForgeSettings, *, stop: asyncio.Event, listening: Listening = _nothing) -> None:
    """Take webhooks and publish what they ask for, until `stop` is set.

    At the end no new connections are taken, open requests are answered, and pending requests are published while the
    broker takes them; each of the last two may take `forge_grace_seconds`. The rest stays in the inbox for the next
    start. Raises ConfigurationError, StoreUnavailable or SchemaTooNew at the start, never for an unreachable broker.
    """
    sources, route = configured_sources(settings, os.environ), jobs_route(settings)
    metrics = Metrics()
    if SOURCE in sources:
        raise ConfigurationError(f"the source name {SOURCE!r} is taken by POST /api/v1/jobs: choose another")
    visitors = access_rules(settings)
    with listen(settings.forge_host, settings.forge_port, named="FORGE_HOST, FORGE_PORT") as listener:
        async with (
            told_access(visitors, service="forge-integration"),
            open_inbox(settings.forge_inbox_url) as inbox,
            open_broker(settings.amqp_url, name="forge-integration") as broker,
            open_remotes(
                [access for source in sources.values() if (access := access_of(source)) is not None],
                timeouts=timeouts_of(settings.forge_call_seconds),
            ) as remotes,
            reporting(settings, sources=sources, remotes=remotes, broker=broker, metrics=metrics) as statuses,
            asyncio.TaskGroup() as tasks,
        ):
            relay = Relay(
                inbox=inbox,
                broker=broker,
                route=route,
                topology=asking_topology(settings),
                metrics=metrics,
                rng=random.Random(),  # noqa: S311  jitter, not a secret
            )
            parts = AppParts(
                inbox=inbox,
                sources=sources,
                metrics=metrics,
                broker_health=lambda: broker.health,
                relay_problem=lambda: relay.problem,
                notices=visitors.notices,
                max_body_bytes=settings.forge_max_body_bytes,
            )
            queued = QueueDepth(broker, route.queue, metrics)
            rules = ApiRules(
                access=visitors,
                per_minute=settings.forge_api_per_minute,
                max_backlog=settings.forge_api_backlog,
                queued=lambda: queued.count,
            )
            pages = DeliveryPages(
                inbox,
                visitors,
                sources=sorted(sources),
                version=__version__,
                public_url=settings.public_url,
                statuses=no_statuses if statuses is None else statuses.shown,
                reconcile_state=inbox.reconcile_state,
            )
            app = create_app(parts, [*api_routes(inbox, rules, metrics), *pages.routes()])
            server = http_server(
                app,
                bounds_of(settings, largest_body=settings.forge_max_body_bytes),
                grace_seconds=settings.forge_grace_seconds,
                refused=metrics.http_refused,
                protocol=WholeRequestProtocol,
            )
            inquirer = LookupService(
                inbox=inbox,
                sources=sources,
                remotes=remotes,
                metrics=metrics,
                rng=random.Random(),  # noqa: S311  jitter, not a secret
            )
            reconciler = Reconciler(
                inbox=inbox,
                sources=sources,
                remotes=remotes,
                metrics=metrics,
                rng=random.Random(),  # noqa: S311  jitter, not a secret
            )
            sweeping = tasks.create_task(
                run_retention(
                    inbox,
                    body_days=settings.forge_retention_days,
                    memory_days=settings.forge_memory_days,
                    rng=random.Random(),  # noqa: S311  jitter, not a secret
                ),
                name="forge-retention",
            )
            counting = tasks.create_task(
                run_queue_depth(queued, rng=random.Random()),  # noqa: S311  jitter, not a secret
                name="forge-queue-depth",
            )
            by_the_clock = [sweeping, counting]
            if settings.forge_reconcile_minutes and remotes:
                comparing = reconciler.run(settings.forge_reconcile_minutes * 60.0)
                by_the_clock.append(tasks.create_task(comparing, name="forge-reconcile"))
            inquiring = tasks.create_task(inquirer.run(), name="forge-lookups")
            relaying = tasks.create_task(relay.run(), name="forge-relay")
            serving = tasks.create_task(server.serve(sockets=[listener]), name="forge-http")
            host, port = listener.getsockname()[:2]
            log.info(
                LogEvent.SERVICE_STARTED,
                host=host,
                port=port,
                sources=sorted(sources),
                broker=broker.url,
                inbox=without_password(settings.forge_inbox_url),
            )
            tune_garbage_collection()
            listening(host, port)
            await stop.wait()
            server.should_exit = True
            await serving
            inquiring.cancel()
            for task in by_the_clock:
                task.cancel()
            await _end(relay, relaying, settings.forge_grace_seconds)
            log.info(LogEvent.SERVICE_DRAINED, pending=await _backlog(inbox))


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
