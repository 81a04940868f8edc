"""The composition root of forge-integration: opens everything, wires it, runs it, and ends it in order."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from solstice_common import __version__
from solstice_common.access import access_rules, tell_access
from solstice_common.broker import open_broker
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.process import spare_the_collector
from solstice_common.settings import without_password
from solstice_common.topology import asking_topology, jobs_route
from solstice_forge.access import access_of, patience_of
from solstice_forge.api.routes import ApiRules, api_routes
from solstice_forge.api.wish import SOURCE
from solstice_forge.app import Parts, create_app
from solstice_forge.config import configured_sources
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.protocol import Inbox
from solstice_forge.inquiring import Inquirer
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.pages.deliveries import Pages, no_statuses
from solstice_forge.queue_depth import Queued, run_queue_depth
from solstice_forge.reconcile.rounds import Reconciler
from solstice_forge.relay import Relay
from solstice_forge.remote.http import open_remotes
from solstice_forge.retention import run_retention
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.reporting import reporting
from solstice_forge.whole_requests import WholeRequestProtocol

log = structlog.get_logger("solstice_forge.service")

KEEP_ALIVE_SECONDS = 65
BACKLOG = 2048

Listening = Callable[[str, int], None]
"""Told the address and port once webhooks can be sent there."""


def _nothing(_host: str, _port: int) -> None:
    pass


async def serve(settings: ForgeSettings, *, stop: asyncio.Event, listening: Listening = _nothing) -> None:
    """Take webhooks and publish what they ask for, until `stop` is set.

    The end: no new connections; open requests are answered; what is pending is published as long as the broker takes
    it; each of the two within `forge_grace_seconds`. What is left stays in the inbox for the next start.
    Raises ConfigurationError, StoreUnavailable or SchemaTooNew at the start, never for a broker that is away.
    """
    sources, route = configured_sources(settings, os.environ), jobs_route(settings)
    metrics = Metrics()
    if SOURCE in sources:
        raise ConfigurationError(f"the source name {SOURCE!r} is taken by POST /api/v1/jobs: choose another")
    visitors = access_rules(settings)
    tell_access(visitors, service="forge-integration")
    with _listener(settings.forge_host, settings.forge_port) as listener:
        async with (
            open_inbox(settings.forge_inbox_url) as inbox,
            open_broker(settings.amqp_url, name="forge-integration") as broker,
            open_remotes(
                [access for source in sources.values() if (access := access_of(source)) is not None],
                patience=patience_of(settings.forge_call_seconds),
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
            parts = Parts(
                inbox=inbox,
                sources=sources,
                metrics=metrics,
                broker_health=lambda: broker.health,
                relay_problem=lambda: relay.problem,
                max_body_bytes=settings.forge_max_body_bytes,
            )
            queued = Queued(broker, route.queue, metrics)
            rules = ApiRules(
                access=visitors,
                per_minute=settings.forge_api_per_minute,
                max_backlog=settings.forge_api_backlog,
                queued=lambda: queued.count,
            )
            pages = Pages(
                inbox,
                visitors,
                sources=sorted(sources),
                version=__version__,
                public_url=settings.public_url,
                statuses=no_statuses if statuses is None else statuses.shown,
                reconciling=inbox.reconciling,
            )
            app = create_app(parts, [*api_routes(inbox, rules, metrics), *pages.routes()])
            server = _server(app, settings.forge_grace_seconds)
            inquirer = Inquirer(
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
            spare_the_collector()
            listening(host, port)
            await stop.wait()
            server.should_exit = True
            await serving
            inquiring.cancel()
            for task in by_the_clock:
                task.cancel()
            await _end(relay, relaying, settings.forge_grace_seconds)
            log.info(LogEvent.SERVICE_DRAINED, pending=await _backlog(inbox))


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever owns the process, and its sockets to nobody."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except asyncio.CancelledError:
            # Uvicorn closes nothing when it is cancelled, and the loop would go on listening to closed sockets.
            for server in getattr(self, "servers", []):  # none when it had not begun
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            raise

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: ASGIApp, grace_seconds: float) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=WholeRequestProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace_seconds)),
        )
    )


@contextlib.contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, made before anything else: a taken port is the commonest mistake."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Told to be TCP, and to send at once, which accepted sockets inherit: asyncio sees to that only where the
    # protocol is given, and without it every answer waits 40 ms for the other side's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"FORGE_HOST {host}, FORGE_PORT {port}: cannot listen there: {error.strerror or error}; "
                "take another port, or 0 for any free one"
            ) from error
        listener.setblocking(False)
        yield listener


async def _end(relay: Relay, relaying: asyncio.Task[None], grace_seconds: float) -> None:
    if relay.has_turn:
        relay.finish()
        await asyncio.wait({relaying}, timeout=grace_seconds)
    relaying.cancel()


async def _backlog(inbox: Inbox) -> int | None:
    try:
        return await inbox.backlog()
    except StoreUnavailable:
        return None
