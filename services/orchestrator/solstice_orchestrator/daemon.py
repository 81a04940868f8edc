"""The composition root of the orchestrator: wires what `opening` opened, runs it, and drains it in order."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.process import spare_the_collector
from solstice_common.settings import without_password
from solstice_common.topology import CANCELS, full_topology, jobs_route
from solstice_orchestrator.domain.trust import parse_sources
from solstice_orchestrator.git.heads import head_of
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.opening import Parts, StoppedBeforehand, opened, when_there
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.stages.backlog import Backlog, run_backlog
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.dispatch import Dispatch
from solstice_orchestrator.stages.forecast_checks import run_estimates
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.stages.outbox_relay import Outbox
from solstice_orchestrator.stages.planning import run_planning
from solstice_orchestrator.stages.queue_reports import LineReports, run_line_reports
from solstice_orchestrator.stages.rescue_sweep import run_rescue
from solstice_orchestrator.stages.retention import run_retention
from solstice_orchestrator.stages.schedule_ticks import Schedules
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.log_buffer import Patience
from solstice_orchestrator.workflow.job_plan import PlanningRules

log = structlog.get_logger("solstice_orchestrator.daemon")

FLUSH_SECONDS: Final = 10.0
"""How long, at the end, the broker is given to take what is still to be told; the rest is told at the next start."""


def _nothing(_url: str) -> None:
    pass


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
    with contextlib.suppress(StoppedBeforehand):
        async with opened(settings, stop) as parts:
            await _work(parts, stop, hurry or asyncio.Event(), on_ready)


async def _work(
    parts: Parts, stop: asyncio.Event, hurry: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """The loops in an inner group, the running jobs in an outer one: loops stop, jobs finish."""
    settings, store, broker = parts.settings, parts.store, parts.broker
    route, topology = jobs_route(settings), full_topology(settings)
    state = await when_there(lambda: store.register(parts.card), settings, stop, parts.rng)
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
        outbox = Outbox(
            store=store, broker=broker, jobs=route, topology=topology, metrics=parts.metrics, rng=parts.rng
        )
        async with asyncio.TaskGroup() as loops:
            taking = [loops.create_task(run, name=name) for name, run in _takers(parts).items()]
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
                slots=dict(parts.card.capacity.slots),
                limit=parts.card.capacity.limit,
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


def _takers(parts: Parts) -> Mapping[str, Coroutine[None, None, None]]:
    """The loops that end as soon as nothing new is to be taken, by their names."""
    settings, store, broker = parts.settings, parts.store, parts.broker
    metrics, rng = parts.metrics, parts.rng
    queue, topology = jobs_route(settings).queue, full_topology(settings)
    backlog = Backlog(store=store, most=settings.max_backlog, metrics=metrics)
    intake = Intake(broker=broker, store=store, metrics=metrics, rng=rng, backlog=backlog)
    cancels = CancelIntake(broker=broker, store=store, metrics=metrics, rng=rng)
    line_reports = LineReports(
        store=store,
        broker=broker,
        worker_id=parts.card.worker_id,
        public_url=settings.pages_url,
        rng=rng,
        saturated=lambda: backlog.held,
    )
    return {
        "intake": intake.run(queue, topology, prefetch=settings.amqp_prefetch),
        "cancels": cancels.run(CANCELS.queue, topology, prefetch=settings.amqp_prefetch),
        "backlog": run_backlog(backlog, rng=rng),
        "planning": _planning(parts),
        "schedules": _schedules(parts),
        "estimates": run_estimates(store, metrics=metrics, rng=rng),
        "line-reports": run_line_reports(line_reports, every_seconds=settings.line_report_seconds, rng=rng),
        "retention": run_retention(store, days=settings.retention_days, rng=rng),
    }


async def _asked_to_end(*asked: asyncio.Event) -> None:
    """Wait for the first of them."""
    waiting = [asyncio.create_task(event.wait(), name="end") for event in asked]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _take_leave(parts: Parts) -> None:
    try:
        await parts.store.leave(parts.card.worker_id)
    except StoreUnavailable as error:
        log.warning(LogEvent.LEAVE_NOT_TAKEN, detail=str(error))


async def _planning(parts: Parts) -> None:
    settings = parts.settings
    await run_planning(
        store=parts.store,
        worker_id=parts.card.worker_id,
        git=parts.git,
        scratch=parts.workspaces.scratch,
        governing=parts.governing,
        hosts=parts.hosts,
        rules=PlanningRules(
            default_runs_on=settings.default_runs_on,
            run_untrusted=parts.executor.isolates or settings.untrusted_runs == "run",
            run_approved=settings.untrusted_runs == "approved",
            v1_trust=parse_sources(settings.v1_trust),
        ),
    )


async def _schedules(parts: Parts) -> None:
    schedules = Schedules(
        timetable=parts.store.timetable,
        worker_id=parts.card.worker_id,
        head_of=functools.partial(head_of, policy=parts.git, scratch=parts.workspaces.scratch),
        metrics=parts.metrics,
        rng=parts.rng,
    )
    await schedules.run()
