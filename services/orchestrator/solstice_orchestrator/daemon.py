"""The composition root of the orchestrator: it wires the parts, runs them and drains them."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

import structlog

from solstice_common.broker import Broker
from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.process import tune_garbage_collection
from solstice_common.settings import known_broker_url, without_password
from solstice_common.topology import CANCELS, QueueType, full_topology, jobs_route, split_jobs_route
from solstice_common.tracing.trace_export import TraceEvents, TraceExport
from solstice_orchestrator.domain.trust import parse_sources
from solstice_orchestrator.git.heads import head_of
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.opening.awaited_store import StoppedWhileOpening, retry_until_available
from solstice_orchestrator.opening.components import Components, open_components
from solstice_orchestrator.opening.factories import broker_of
from solstice_orchestrator.scheduling.workers import WorkerState
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.stages.artifact_sweep import run_artifact_sweep
from solstice_orchestrator.stages.backlog import JobBacklog, run_backlog
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.dispatch import Dispatch
from solstice_orchestrator.stages.forecast_checks import run_forecast_checks
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.stages.left_requests import LeftRequests
from solstice_orchestrator.stages.outbox_relay import OutboxRelay
from solstice_orchestrator.stages.planning import run_planning
from solstice_orchestrator.stages.queue_reports import QueueReports, run_queue_reports
from solstice_orchestrator.stages.rescue_sweep import run_rescue, run_sweep
from solstice_orchestrator.stages.retention import run_retention
from solstice_orchestrator.stages.run_spans import RunSurroundings
from solstice_orchestrator.stages.schedule_ticks import ScheduleRunner
from solstice_orchestrator.stages.trace_backlog import RunTraceBacklog
from solstice_orchestrator.worker.caches.cache_sweep import run_cache_sweep
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.log_buffer import StoreRetryLimit
from solstice_orchestrator.workflow.job_plan import PlanningRules, runs_untrusted

log = structlog.get_logger(__name__)

FLUSH_SECONDS: Final = 10.0
"""How long the outbox is still published at the end. The next start publishes the rest."""


def _do_nothing(_url: str) -> None:
    pass


async def run(
    settings: OrchestratorSettings,
    stop: asyncio.Event,
    *,
    hurry: asyncio.Event | None = None,
    on_ready: Callable[[str], None] = _do_nothing,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Take requests, run jobs and publish their outcomes, until `stop` is set.

    `on_ready` is called with the base URL of the pages and the API once they are served. The file of secrets may refer
    to variables of `environ`.

    At the end no new work is taken. Running jobs have `drain_seconds`, or until `hurry`, and are then handed
    back. The outbox is published while the broker accepts messages, and the pages are served until the end.
    An operator's order to drain this worker sets `stop` too, after its jobs have ended, however long they
    take.

    Raises ConfigurationError, TopologyMismatch or SchemaTooNew, never for an unavailable broker. It waits for
    an unavailable PostgreSQL; a SQLite file that cannot be used raises StoreUnavailable at once.
    """
    with contextlib.suppress(StoppedWhileOpening):
        async with open_components(settings, stop, environ) as components:
            await _work(components, stop, hurry or asyncio.Event(), on_ready)


async def _work(
    components: Components, stop: asyncio.Event, hurry: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Run the loops in an inner task group and the jobs in an outer one.

    So the loops stop first, and the jobs finish.
    """
    settings, store = components.settings, components.store
    state = await retry_until_available(
        lambda: store.register(components.registration), settings, stop, components.rng
    )
    notice: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as jobs:
        dispatch = _dispatch(components, jobs, notice)
        components.starting.on_begun = dispatch.wake
        outbox = _outbox(components)
        async with asyncio.TaskGroup() as loops:
            taking = [loops.create_task(run, name=name) for name, run in _takers(components).items()]
            # Runs for as long as jobs run: their runs may reach their time limit meanwhile.
            rescuing = loops.create_task(_rescue(components), name="rescue")
            sweeping = loops.create_task(_sweep(components), name="sweep")
            claiming = loops.create_task(dispatch.claim_jobs(), name="dispatch")
            renewing = loops.create_task(dispatch.keep_leases(), name="leases")
            publishing = loops.create_task(outbox.run(), name="outbox")
            _log_started(components, state)
            tune_garbage_collection()
            on_ready(components.url)
            await _end_requested(stop, dispatch.drain_ordered)
            for task in taking:
                task.cancel()
            dispatch.stop_claiming()
            await asyncio.wait([claiming, *taking])
            handed_back = await _drain(settings, dispatch, stop, hurry, notice)
            for task in (renewing, rescuing, sweeping):
                task.cancel()
            await asyncio.wait([renewing, rescuing, sweeping])
            await _take_leave(components)
            outbox.finish()
            await asyncio.wait([publishing], timeout=FLUSH_SECONDS)
            publishing.cancel()
    log.info(LogEvent.DRAINED, handed_back=handed_back)


def _dispatch(components: Components, jobs: asyncio.TaskGroup, notice: asyncio.Future[str]) -> Dispatch:
    settings, store = components.settings, components.store
    return Dispatch(
        store=store,
        execute=functools.partial(
            execute,
            store=store,
            executor=components.executor,
            secret_rules=components.secret_rules,
            sampler=settings.trace_sampler,
            notice=notice,
            retry_limit=StoreRetryLimit(seconds=settings.lease_seconds),
        ),
        registration=components.registration,
        jobs=jobs,
        metrics=components.metrics,
        rng=components.rng,
        lease_seconds=settings.lease_seconds,
        renew_seconds=settings.renew_seconds,
        governor=components.governor,
    )


def _outbox(components: Components) -> OutboxRelay:
    return OutboxRelay(
        store=components.store,
        broker=components.broker,
        jobs=jobs_route(components.settings),
        topology=full_topology(components.settings),
        metrics=components.metrics,
        rng=components.rng,
    )


async def _rescue(components: Components) -> None:
    settings = components.settings
    await run_rescue(
        components.store,
        every_seconds=settings.rescue_seconds,
        lease_seconds=settings.lease_seconds,
        rng=components.rng,
    )


async def _sweep(components: Components) -> None:
    settings = components.settings
    await run_sweep(
        settings.workspaces,
        components.end_left,
        every_seconds=settings.rescue_seconds,
        rng=components.rng,
    )


def _log_started(components: Components, state: WorkerState) -> None:
    settings, registration = components.settings, components.registration
    log.info(
        LogEvent.STARTED,
        worker_id=registration.worker_id,
        name=registration.name,
        state=state,
        url=components.url,
        slots=dict(registration.capacity.slots),
        limit=registration.capacity.limit,
        broker=components.broker.url,
        database=without_password(settings.database_url),
    )


async def _drain(
    settings: OrchestratorSettings,
    dispatch: Dispatch,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    notice: asyncio.Future[str],
) -> int:
    """Let running jobs end; return how many were handed back."""
    if not stop.is_set():
        log.info(LogEvent.DRAIN_ORDERED, jobs=dispatch.running)
        await dispatch.finish_jobs(stop)
        # Everything else in this process ends as well.
        stop.set()
    notice.set_result(
        f"this worker drains: a job that has not ended in {settings.drain_seconds:g} s starts over elsewhere"
    )
    log.info(LogEvent.DRAIN_BEGUN, jobs=dispatch.running, grace_seconds=settings.drain_seconds)
    return await dispatch.drain(settings.drain_seconds, hurry)


def _takers(components: Components) -> Mapping[str, Coroutine[None, None, None]]:
    """Return the loops that take new work, by name; they end first."""
    settings, store, broker = components.settings, components.store, components.broker
    metrics, rng = components.metrics, components.rng
    topology = full_topology(settings)
    backlog = JobBacklog(
        store=store, most=settings.max_backlog, seconds=settings.intake_seconds, metrics=metrics
    )
    signatures = components.signatures

    def intake(of: Broker) -> Intake:
        return Intake(
            broker=of,
            store=store,
            metrics=metrics,
            rng=rng,
            backlog=backlog,
            signatures=signatures,
            early=components.early,
        )

    requests = intake(broker)
    cancels = CancelIntake(
        broker=broker,
        store=store,
        metrics=metrics,
        rng=rng,
        verify_keys=signatures.keys if signatures else None,
    )
    components.intakes.extend((requests, cancels))
    queue_reports = QueueReports(
        store=store,
        broker=broker,
        worker_id=components.registration.worker_id,
        public_url=settings.pages_url,
        rng=rng,
        saturated=lambda: backlog.paused,
    )
    return {
        "intake": requests.run(jobs_route(settings), topology, prefetch=settings.amqp_prefetch),
        "left-requests": _left_requests(components, intake),
        "cancels": cancels.run(CANCELS, topology, prefetch=settings.amqp_prefetch),
        "backlog": run_backlog(backlog, rng=rng),
        "planning": _planning(components),
        "schedules": _schedules(components),
        "forecast-checks": run_forecast_checks(store, metrics=metrics, rng=rng),
        "queue-reports": run_queue_reports(
            queue_reports, every_seconds=settings.line_report_seconds, rng=rng
        ),
        "artifacts": run_artifact_sweep(store, components.artifacts, rng=rng),
        "caches": run_cache_sweep(components.caches, metrics.caches_evicted.inc, rng=rng),
        "retention": run_retention(store, days=settings.retention_days, rng=rng),
        **_traces(components),
    }


def _traces(components: Components) -> Mapping[str, Coroutine[None, None, None]]:
    """Return the loop that sends spans, by its name; none while nothing is traced."""
    settings, sampler = components.settings, components.settings.trace_sampler
    if components.exporter is None or sampler is None:
        return {}
    surroundings = RunSurroundings(
        settings.amqp_queue, known_broker_url(settings.amqp_url), settings.pages_url
    )
    export = TraceExport(
        RunTraceBacklog(store=components.store, sampler=sampler, surroundings=surroundings),
        components.exporter,
        count=components.metrics.spans,
        events=TraceEvents(
            paused=LogEvent.TRACES_PAUSED,
            resumed=LogEvent.TRACES_RESUMED,
            refused=LogEvent.TRACES_REFUSED,
            crashed=LogEvent.TRACES_CRASHED,
        ),
        rng=components.rng,
    )
    return {"traces": export.run()}


async def _left_requests(components: Components, intake: Callable[[Broker], Intake]) -> None:
    settings = components.settings
    if settings.amqp_priorities == "split":
        return
    left = LeftRequests(
        broker=components.broker,
        open_broker=functools.partial(broker_of, settings, components.metrics),
        intake=intake,
        queue_type=QueueType(settings.amqp_queue_type),
        prefetch=settings.amqp_prefetch,
        found=components.left_queues,
    )
    await left.run(split_jobs_route(settings).classes.values())


async def _end_requested(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait(), name="end") for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _take_leave(components: Components) -> None:
    try:
        await components.store.leave(components.registration.worker_id)
    except StoreUnavailable as error:
        log.warning(LogEvent.END_NOT_STORED, detail=str(error))


async def _planning(components: Components) -> None:
    settings = components.settings
    await run_planning(
        store=components.store,
        worker_id=components.registration.worker_id,
        git=components.git,
        scratch=components.workspaces.scratch,
        governor=components.governor,
        hosts=components.hosts,
        planned=components.planned,
        early=components.early,
        rules=PlanningRules(
            default_runs_on=settings.default_runs_on,
            run_untrusted=runs_untrusted(
                settings.untrusted_runs, settings.executor, isolates=components.executor.isolates
            ),
            isolates=components.isolates if settings.untrusted_runs == "isolated" else lambda _label: True,
            run_approved=settings.untrusted_runs == "approved",
            v1_trust=parse_sources(settings.v1_trust),
        ),
    )


async def _schedules(components: Components) -> None:
    schedules = ScheduleRunner(
        schedule_store=components.store.schedule_store,
        worker_id=components.registration.worker_id,
        head_of=functools.partial(head_of, policy=components.git, scratch=components.workspaces.scratch),
        metrics=components.metrics,
        rng=components.rng,
    )
    await schedules.run()
