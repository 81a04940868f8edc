"""The composition root of the orchestrator: opens everything, wires it, runs it, and drains it in order."""

import asyncio
import functools
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_common import __version__
from solstice_common.broker import open_broker
from solstice_common.broker.protocol import Broker
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.capacity import capacity, parse_slots
from solstice_orchestrator.dispatch import Dispatch
from solstice_orchestrator.execution import execute
from solstice_orchestrator.executors import make_executor
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.intake import Intake
from solstice_orchestrator.job_plan import PlanningRules
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metering import MeteredExecutor
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.outbox import Outbox
from solstice_orchestrator.planning import run_planning
from solstice_orchestrator.rescue import run_rescue
from solstice_orchestrator.settings import OrchestratorSettings, split
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.web.app import create_app
from solstice_orchestrator.web.server import serving
from solstice_orchestrator.web.sse import Streams
from solstice_orchestrator.workspaces import Workspaces, open_workspaces

log = structlog.get_logger("solstice_orchestrator.daemon")

FLUSH_SECONDS: Final = 10.0
"""How long, at the end, the broker is given to take what is still to be told; the rest is told at the next start."""
MIB: Final = 1024 * 1024


def _nothing(_url: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is open while the orchestrator lives."""

    settings: OrchestratorSettings
    worker_id: str
    store: JobStore
    broker: Broker
    workspaces: Workspaces
    git: GitPolicy
    executor: MeteredExecutor
    metrics: Metrics
    rng: random.Random
    url: str


async def run(
    settings: OrchestratorSettings,
    stop: asyncio.Event,
    *,
    hurry: asyncio.Event | None = None,
    on_ready: Callable[[str], None] = _nothing,
) -> None:
    """Take requests, run jobs and tell what became of them, until `stop` is set.

    `on_ready` is told the base URL of the pages and the API once they are served. The end: nothing new is taken;
    running jobs have `drain_seconds`, or until `hurry`, and are handed back after that; what is still to be told is
    told as long as the broker takes it. The pages are served to the last.
    Raises ConfigurationError, TopologyMismatch, StoreUnavailable or SchemaTooNew, never for a broker that is away.
    """
    async with _opened(settings) as parts:
        await _work(parts, stop, hurry or asyncio.Event(), on_ready)


async def _work(
    parts: _Parts, stop: asyncio.Event, hurry: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """The loops in an inner group, the running jobs in an outer one: loops stop, jobs finish."""
    settings, store, broker = parts.settings, parts.store, parts.broker
    route, topology = jobs_route(settings), full_topology(settings)
    whole = capacity(parse_slots(settings.capacity_map), settings.max_concurrency)
    async with asyncio.TaskGroup() as jobs:
        dispatch = Dispatch(
            store=store,
            execute=functools.partial(execute, store=store, executor=parts.executor),
            worker_id=parts.worker_id,
            capacity=whole,
            jobs=jobs,
            metrics=parts.metrics,
            rng=parts.rng,
            lease_seconds=settings.lease_seconds,
            renew_seconds=settings.renew_seconds,
        )
        intake = Intake(broker=broker, store=store, metrics=parts.metrics, rng=parts.rng)
        outbox = Outbox(
            store=store, broker=broker, jobs=route, topology=topology, metrics=parts.metrics, rng=parts.rng
        )
        async with asyncio.TaskGroup() as loops:
            taking = [
                loops.create_task(
                    intake.run(route.queue, topology, prefetch=settings.amqp_prefetch), name="intake"
                ),
                loops.create_task(_planning(parts), name="planning"),
                loops.create_task(
                    run_rescue(
                        store,
                        every_seconds=settings.rescue_seconds,
                        lease_seconds=settings.lease_seconds,
                        rng=parts.rng,
                    ),
                    name="rescue",
                ),
            ]
            claiming = loops.create_task(dispatch.claim_jobs(), name="dispatch")
            renewing = loops.create_task(dispatch.keep_leases(), name="leases")
            telling = loops.create_task(outbox.run(), name="outbox")
            log.info(
                LogEvent.STARTED,
                worker_id=parts.worker_id,
                url=parts.url,
                slots=dict(whole.slots),
                limit=whole.limit,
                broker=broker.url,
                database=settings.database_url,
            )
            on_ready(parts.url)
            await stop.wait()
            log.info(LogEvent.DRAIN_BEGUN, jobs=dispatch.running, grace_seconds=settings.drain_seconds)
            for task in taking:
                task.cancel()
            dispatch.stop_claiming()
            await asyncio.wait([claiming, *taking])
            handed_back = await dispatch.drain(settings.drain_seconds, hurry)
            renewing.cancel()
            outbox.finish()
            await asyncio.wait([telling], timeout=FLUSH_SECONDS)
            telling.cancel()
    log.info(LogEvent.DRAINED, handed_back=handed_back)


async def _planning(parts: _Parts) -> None:
    settings = parts.settings
    await run_planning(
        store=parts.store,
        worker_id=parts.worker_id,
        git=parts.git,
        scratch=parts.workspaces.scratch,
        rules=PlanningRules(
            default_runs_on=settings.default_runs_on,
            run_untrusted=parts.executor.isolates or settings.untrusted_runs == "run",
        ),
    )


@asynccontextmanager
async def _opened(settings: OrchestratorSettings) -> AsyncIterator[_Parts]:
    """Everything that has to be closed again; the web server first among the open and last among the closed."""
    # Ids and jitter need no secrecy, only not to be those of another process.
    rng = random.Random(secrets.randbits(128))  # noqa: S311
    metrics, streams = Metrics(), Streams()
    git = GitPolicy(
        protocols=split(settings.git_protocols),
        timeout_seconds=settings.git_timeout_seconds,
        max_bytes=settings.git_max_mib * MIB,
        environment=os.environ,
    )
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(
                settings.database_url,
                rng=rng,
                public_url=settings.pages_url,
                lease_seconds=settings.lease_seconds,
                retry_base_seconds=settings.retry_base_seconds,
            )
        )
        broker = await stack.enter_async_context(open_broker(settings.amqp_url, name="orchestrator"))
        workspaces = await stack.enter_async_context(open_workspaces(settings.workspaces))
        executor = make_executor(
            settings.executor,
            workspaces=workspaces,
            git=git,
            grace_seconds=settings.stop_grace_seconds,
            max_log_bytes=settings.max_log_mib * MIB,
            path=settings.job_path,
        )
        app = create_app(
            store=store,
            broker_health=lambda: broker.health,
            metrics=metrics,
            version=__version__,
            public_url=settings.public_url or None,
            streams=streams,
        )
        url = await stack.enter_async_context(
            serving(app, streams, host=settings.orchestrator_host, port=settings.orchestrator_port)
        )
        yield _Parts(
            settings=settings,
            worker_id=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            store=store,
            broker=broker,
            workspaces=workspaces,
            git=git,
            executor=MeteredExecutor(executor=executor, metrics=metrics, isolates=executor.isolates),
            metrics=metrics,
            rng=rng,
            url=url,
        )
