"""The composition root of the orchestrator: opens everything, wires it, runs it, and drains it in order."""

import asyncio
import contextlib
import functools
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from solstice_common import __version__
from solstice_common.access import access_rules, check_listening, tell_access
from solstice_common.backoff import backoff_seconds
from solstice_common.broker import open_broker
from solstice_common.broker.protocol import Broker
from solstice_common.errors import StoreUnavailable
from solstice_common.process import spare_the_collector
from solstice_common.settings import without_password
from solstice_common.topology import CANCELS, full_topology, jobs_route
from solstice_orchestrator import sensors
from solstice_orchestrator.backlog import Backlog, run_backlog
from solstice_orchestrator.cancel_intake import CancelIntake
from solstice_orchestrator.capacity import capacity, parse_slots
from solstice_orchestrator.caps import parse_caps
from solstice_orchestrator.dispatch import Dispatch
from solstice_orchestrator.estimates import run_estimates
from solstice_orchestrator.execution import execute
from solstice_orchestrator.executors import make_executor
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.heads import head_of
from solstice_orchestrator.governing import Governing, Starting
from solstice_orchestrator.governor import parse_limits
from solstice_orchestrator.intake import Intake
from solstice_orchestrator.job_plan import PlanningRules
from solstice_orchestrator.line_reports import LineReports, run_line_reports
from solstice_orchestrator.log_buffer import Patience
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metering import MeteredExecutor
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.outbox import Outbox
from solstice_orchestrator.planning import run_planning
from solstice_orchestrator.rescue import run_rescue
from solstice_orchestrator.retention import run_retention
from solstice_orchestrator.schedules import Schedules
from solstice_orchestrator.secret_rules import SecretRules, read_secret_rules
from solstice_orchestrator.settings import OrchestratorSettings, split
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.web.app import create_app
from solstice_orchestrator.web.server import serving
from solstice_orchestrator.web.sse import Streams
from solstice_orchestrator.workers import WorkerCard
from solstice_orchestrator.workspaces import Workspaces, open_workspaces

log = structlog.get_logger("solstice_orchestrator.daemon")

FLUSH_SECONDS: Final = 10.0
"""How long, at the end, the broker is given to take what is still to be told; the rest is told at the next start."""
MIB: Final = 1024 * 1024
STORE_RETRY_SECONDS: Final = 2.0

T = TypeVar("T")


def _nothing(_url: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is open while the orchestrator lives."""

    settings: OrchestratorSettings
    card: WorkerCard
    store: JobStore
    broker: Broker
    workspaces: Workspaces
    git: GitPolicy
    executor: MeteredExecutor
    governing: Governing
    starting: Starting
    secret_rules: SecretRules
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
    told as long as the broker takes it. The pages are served to the last. Somebody who drains the worker sets `stop`
    too, once its jobs have ended, however long they take.
    Raises ConfigurationError, TopologyMismatch or SchemaTooNew, never for a broker that is away. A PostgreSQL that is away
    is waited for; a SQLite file that cannot be used is StoreUnavailable at once.
    """
    with contextlib.suppress(_StoppedBeforehand):
        async with _opened(settings, stop) as parts:
            await _work(parts, stop, hurry or asyncio.Event(), on_ready)


async def _work(
    parts: _Parts, stop: asyncio.Event, hurry: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """The loops in an inner group, the running jobs in an outer one: loops stop, jobs finish."""
    settings, store, broker = parts.settings, parts.store, parts.broker
    route, topology = jobs_route(settings), full_topology(settings)
    whole = parts.card.capacity
    state = await _when_there(lambda: store.register(parts.card), settings, stop, parts.rng)
    notice: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as jobs:
        dispatch = Dispatch(
            store=store,
            execute=functools.partial(
                execute,
                store=store,
                executor=parts.executor,
                secret_rules=parts.secret_rules,
                notice=notice,
                patience=Patience(seconds=settings.lease_seconds),
            ),
            card=parts.card,
            jobs=jobs,
            metrics=parts.metrics,
            rng=parts.rng,
            lease_seconds=settings.lease_seconds,
            renew_seconds=settings.renew_seconds,
            governing=parts.governing,
        )
        parts.starting.on_begun = dispatch.look_again
        backlog = Backlog(store=store, most=settings.max_backlog, metrics=parts.metrics)
        intake = Intake(broker=broker, store=store, metrics=parts.metrics, rng=parts.rng, backlog=backlog)
        cancels = CancelIntake(broker=broker, store=store, metrics=parts.metrics, rng=parts.rng)
        outbox = Outbox(
            store=store, broker=broker, jobs=route, topology=topology, metrics=parts.metrics, rng=parts.rng
        )
        async with asyncio.TaskGroup() as loops:
            taking = [
                loops.create_task(
                    intake.run(route.queue, topology, prefetch=settings.amqp_prefetch), name="intake"
                ),
                loops.create_task(
                    cancels.run(CANCELS.queue, topology, prefetch=settings.amqp_prefetch), name="cancels"
                ),
                loops.create_task(run_backlog(backlog, rng=parts.rng), name="backlog"),
                loops.create_task(_planning(parts), name="planning"),
                loops.create_task(_schedules(parts), name="schedules"),
                loops.create_task(
                    run_estimates(store, metrics=parts.metrics, rng=parts.rng), name="estimates"
                ),
                loops.create_task(
                    run_line_reports(
                        LineReports(
                            store=store,
                            broker=broker,
                            worker_id=parts.card.worker_id,
                            public_url=settings.pages_url,
                            rng=parts.rng,
                            saturated=lambda: backlog.held,
                        ),
                        every_seconds=settings.line_report_seconds,
                        rng=parts.rng,
                    ),
                    name="line-reports",
                ),
                loops.create_task(
                    run_retention(store, days=settings.retention_days, rng=parts.rng), name="retention"
                ),
            ]
            # Goes on while jobs do: their runs may be out of time meanwhile.
            rescuing = loops.create_task(
                run_rescue(
                    store,
                    every_seconds=settings.rescue_seconds,
                    lease_seconds=settings.lease_seconds,
                    rng=parts.rng,
                ),
                name="rescue",
            )
            claiming = loops.create_task(dispatch.claim_jobs(), name="dispatch")
            renewing = loops.create_task(dispatch.keep_leases(), name="leases")
            telling = loops.create_task(outbox.run(), name="outbox")
            log.info(
                LogEvent.STARTED,
                worker_id=parts.card.worker_id,
                name=parts.card.name,
                state=state,
                url=parts.url,
                slots=dict(whole.slots),
                limit=whole.limit,
                broker=broker.url,
                database=without_password(settings.database_url),
            )
            spare_the_collector()
            on_ready(parts.url)
            await _asked_to_end(stop, dispatch.drain_ordered)
            for task in taking:
                task.cancel()
            dispatch.stop_claiming()
            await asyncio.wait([claiming, *taking])
            if not stop.is_set():
                log.info(LogEvent.DRAIN_ORDERED, jobs=dispatch.running)
                await dispatch.finish_jobs(stop)
                # Whatever else lives in this process ends as well.
                stop.set()
            notice.set_result(
                f"this worker drains: a job that has not ended in {settings.drain_seconds:g} s begins anew elsewhere"
            )
            log.info(LogEvent.DRAIN_BEGUN, jobs=dispatch.running, grace_seconds=settings.drain_seconds)
            handed_back = await dispatch.drain(settings.drain_seconds, hurry)
            for task in (renewing, rescuing):
                task.cancel()
            await asyncio.wait([renewing, rescuing])
            await _take_leave(parts)
            outbox.finish()
            await asyncio.wait([telling], timeout=FLUSH_SECONDS)
            telling.cancel()
    log.info(LogEvent.DRAINED, handed_back=handed_back)


async def _asked_to_end(*asked: asyncio.Event) -> None:
    """Wait for the first of them."""
    waiting = [asyncio.create_task(event.wait(), name="end") for event in asked]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _take_leave(parts: _Parts) -> None:
    try:
        await parts.store.leave(parts.card.worker_id)
    except StoreUnavailable as error:
        log.warning(LogEvent.LEAVE_NOT_TAKEN, detail=str(error))


async def _planning(parts: _Parts) -> None:
    settings = parts.settings
    await run_planning(
        store=parts.store,
        worker_id=parts.card.worker_id,
        git=parts.git,
        scratch=parts.workspaces.scratch,
        rules=PlanningRules(
            default_runs_on=settings.default_runs_on,
            run_untrusted=parts.executor.isolates or settings.untrusted_runs == "run",
            run_approved=settings.untrusted_runs == "approved",
        ),
    )


async def _schedules(parts: _Parts) -> None:
    schedules = Schedules(
        timetable=parts.store.timetable,
        worker_id=parts.card.worker_id,
        head_of=functools.partial(head_of, policy=parts.git, scratch=parts.workspaces.scratch),
        metrics=parts.metrics,
        rng=parts.rng,
    )
    await schedules.run()


class _StoppedBeforehand(Exception):
    """We were asked to end while we waited for the database."""


async def _when_there(
    ask: Callable[[], Awaitable[T]], settings: OrchestratorSettings, stop: asyncio.Event, rng: random.Random
) -> T:
    """What the store answers, however long a PostgreSQL is away; after a power failure nobody knows who is up first."""
    failures = 0
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if not settings.database_url.startswith("postgresql:"):
                raise
            if not failures:
                log.warning(LogEvent.STORE_AWAITED, detail=str(error))
        pause = backoff_seconds(failures, rng=rng, base_seconds=0.2, cap_seconds=STORE_RETRY_SECONDS)
        failures += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
            raise _StoppedBeforehand


@asynccontextmanager
async def _opened(settings: OrchestratorSettings, stop: asyncio.Event) -> AsyncIterator[_Parts]:
    """Everything that has to be closed again; the web server first among the open and last among the closed."""
    # Ids and jitter need no secrecy, only not to be those of another process.
    rng = random.Random(secrets.randbits(128))  # noqa: S311
    metrics, streams = Metrics(), Streams()
    access = access_rules(settings)
    secret_rules = read_secret_rules(settings.secrets_config, os.environ)
    check_listening(access, host=settings.orchestrator_host, setting="ORCHESTRATOR_HOST")
    tell_access(access, service="orchestrator")
    git = GitPolicy(
        protocols=split(settings.git_protocols),
        timeout_seconds=settings.git_timeout_seconds,
        max_bytes=settings.git_max_mib * MIB,
        environment=os.environ,
    )
    async with AsyncExitStack() as stack:
        open_it = functools.partial(
            open_store,
            settings.database_url,
            rng=rng,
            public_url=settings.pages_url,
            lease_seconds=settings.lease_seconds,
            retry_base_seconds=settings.retry_base_seconds,
            max_wait_seconds=settings.max_wait_seconds,
            caps=parse_caps(settings.repository_caps),
            quotas=settings.quotas,
            rates=settings.start_rates,
            supersede=settings.supersede,
        )
        store = await _when_there(lambda: stack.enter_async_context(open_it()), settings, stop, rng)
        broker = await stack.enter_async_context(open_broker(settings.amqp_url, name="orchestrator"))
        workspaces = await stack.enter_async_context(open_workspaces(settings.workspaces))
        executor = make_executor(
            settings.executor,
            workspaces=workspaces,
            git=git,
            grace_seconds=settings.stop_grace_seconds,
            max_log_bytes=settings.max_log_mib * MIB,
            path=settings.job_path,
            no_output_seconds=settings.no_output_seconds,
            disk_reserve_bytes=settings.disk_reserve_mib * MIB,
            starting=(starting := Starting()),
        )
        whole = capacity(parse_slots(settings.capacity_map), settings.max_concurrency)
        limits = parse_limits(settings.governor)
        governing = Governing(
            limit=whole.limit,
            # What is played is not checked out, and may start in any number.
            limits=replace(limits, starting=None) if settings.executor == "scripted" else limits,
            adaptive=settings.adaptive_concurrency,
            read=functools.partial(sensors.read, workspaces.directory),
            starting=starting,
            metrics=metrics,
        )
        app = create_app(
            store=store,
            broker_health=lambda: broker.health,
            metrics=metrics,
            version=__version__,
            access=access,
            public_url=settings.public_url or None,
            streams=streams,
        )
        url = await stack.enter_async_context(
            serving(app, streams, host=settings.orchestrator_host, port=settings.orchestrator_port)
        )
        yield _Parts(
            settings=settings,
            card=WorkerCard(
                worker_id=f"{settings.name_of_worker}:{os.getpid()}:{secrets.token_hex(4)}",
                name=settings.name_of_worker,
                host=socket.gethostname(),
                version=__version__,
                capacity=whole,
            ),
            store=store,
            secret_rules=secret_rules,
            broker=broker,
            workspaces=workspaces,
            git=git,
            executor=MeteredExecutor(
                executor=executor, metrics=metrics, isolates=executor.isolates, ended=governing.ended
            ),
            governing=governing,
            starting=starting,
            metrics=metrics,
            rng=rng,
            url=url,
        )
