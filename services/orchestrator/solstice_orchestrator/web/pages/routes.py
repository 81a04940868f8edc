"""Routes of the pages: runs, jobs with live logs, workers and schedules.

The pages are complete without JavaScript; `static/app.js` updates them.
"""

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from solstice_common.http.pages import page_environment
from solstice_common.messages.states import RunState
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import JobView
from solstice_orchestrator.web.api.following import (
    BATCH,
    MAX_JOBS,
    LogEnded,
    LogPiece,
    LogPosition,
    NewAttempt,
    follow_log,
)
from solstice_orchestrator.web.api.log_rows import LIVE_ROWS, LogRows, RenderedLog, render_log
from solstice_orchestrator.web.api.logs import ended_document, requested_attempt, requested_position
from solstice_orchestrator.web.api.runs import cancelled_by, known_job, new_run_or_refusal, stream
from solstice_orchestrator.web.api.schedules import steered as steered_schedule
from solstice_orchestrator.web.api.why import why_job, why_run
from solstice_orchestrator.web.api.worker_routes import steered
from solstice_orchestrator.web.formats.ansi import RowsUpdate, palette_css
from solstice_orchestrator.web.formats.api_json import document, rfc3339
from solstice_orchestrator.web.formats.query_parameters import (
    LinePageQuery,
    LogStreamQuery,
    NoParameters,
    PageQuery,
    RerunQuery,
    SchedulesPageQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import not_found
from solstice_orchestrator.web.formats.report_json import newest_reports
from solstice_orchestrator.web.formats.sse import Event, Events, OpenStreams
from solstice_orchestrator.web.pages import wording

NOT_PLANNED: Final = frozenset({RunState.DELAYED, RunState.PLANNING})
SCHEDULES_SHOWN: Final = 100


class Pages:
    """The handlers of the pages."""

    def __init__(
        self,
        store: JobStore,
        streams: OpenStreams,
        *,
        version: str,
        deliveries_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._streams = streams
        self._clock = clock
        self._templates = page_environment(
            "solstice_orchestrator.web",
            home="/",
            home_name="All runs",
            version=version,
            deliveries_url=deliveries_url,
            words=wording,
            rfc3339=rfc3339,
        )
        self._palette = palette_css()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.runs),
            Route("/runs/{run_id}", self.run),
            Route("/requests/{request_id}", self.request),
            Route("/runs/{run_id}/cancel", self.cancel_run, methods=["POST"]),
            Route("/runs/{run_id}/approve", self.approve_run, methods=["POST"]),
            Route("/runs/{run_id}/rerun", self.rerun, methods=["POST"]),
            Route("/jobs/{job_id}", self.job),
            Route("/jobs/{job_id}/log/html-events", self.log_events),
            Route("/jobs/{job_id}/cancel", self.cancel_job, methods=["POST"]),
            Route("/jobs/{job_id}/rerun", self.rerun_job, methods=["POST"]),
            Route("/workers", self.workers),
            Route("/workers/{worker_id}/{order}", self.steer_worker, methods=["POST"]),
            Route("/schedules", self.schedules),
            Route("/schedules/{schedule}/{action}", self.steer_schedule, methods=["POST"]),
            Route("/static/palette.css", self.palette),
        ]

    async def runs(self, request: Request) -> Response:
        """Runs, newest first."""
        query = parse_query(request, PageQuery)
        repository, state, after = (query.repository or "").strip(), query.state, query.after
        page = await self._store.runs(
            limit=query.limit,
            after=after,
            repository=repository or None,
            state=state,
            ref=query.ref,
            label=query.label,
            priority=query.priority,
        )
        further = {"branch": query.branch, "label": query.label, "priority": query.priority}
        filters = {
            "repository": repository,
            "state": state.value if state else "",
            **{name: value or "" for name, value in further.items()},
        }
        older = urlencode({name: value for name, value in (filters | {"after": page.next}).items() if value})
        return self._page(
            "runs.html",
            runs=page.runs,
            repository=repository,
            state=state,
            states=list(RunState),
            further={name: value for name, value in further.items() if value},
            after=after,
            older=f"/?{older}" if page.next else None,
        )

    async def run(self, request: Request) -> Response:
        """One run with its jobs."""
        run_id = request.path_params["run_id"]
        run = await self._store.run(run_id)
        if run is None:
            raise not_found("run", run_id)
        jobs = await self._store.jobs(run_id=run_id, limit=MAX_JOBS)
        why = await why_run(self._store, run_id) if run.state in NOT_PLANNED else None
        return self._page(
            "run.html",
            run=run,
            jobs=jobs,
            why=why,
            artifacts=await self._store.artifacts(run_id=run_id),
            tests={
                view.job_id: view.counts
                for view in newest_reports(await self._store.reports(run_id=run_id, details=False))
            },
            asked=request.query_params.get("asked"),
        )

    async def request(self, request: Request) -> Response:
        """Redirect from a request to its run.

        The forge-integrations link here, because they do not know the ids of runs.
        """
        request_id = request.path_params["request_id"]
        run = await self._store.run_of_request(request_id)
        if run is None:
            raise not_found("run of request", request_id)
        return RedirectResponse(f"/runs/{run.run_id}", 303)

    async def job(self, request: Request) -> Response:
        """One job with the newest rows of its log, or of that of a service."""
        job = await known_job(self._store, request)
        run = await self._store.run(job.run_id)
        if run is None:
            raise not_found("run", job.run_id)
        query = parse_query(request, LinePageQuery, others=True)
        # It may have written nothing in this attempt, and something in another one.
        pinned, service = requested_attempt(query, job), query.service or ""
        attempts = await self._store.attempts(job.job_id)
        shown = pinned or job.attempt
        is_over = job.state.final or shown < job.attempt
        # The rows around one line are not live: the newest rows are elsewhere.
        log = await render_log(
            self._store, job.job_id, shown, ended=is_over, line=query.line, service=service
        )
        services = await self._store.logged_services(job.job_id, attempt=shown)
        reports = await self._store.reports(job_id=job.job_id)
        return self._page(
            "job.html",
            run=run,
            job=job,
            siblings=await self._store.jobs(run_id=run.run_id, limit=MAX_JOBS),
            attempts=attempts,
            shown=shown,
            services=services,
            artifacts=await self._store.artifacts(job_id=job.job_id),
            outputs=await self._store.outputs(job.job_id) if job.state.final else {},
            service=service,
            tests=next((each for each in reports if each.attempt == shown), None),
            log=log,
            hidden=_hidden_before(log),
            line=query.line,
            stream=None if is_over or query.line else _stream_url(job, log, pinned, service),
            version_of_job=_version(job, services),
            why=await why_job(self._store, job.job_id),
            asked=request.query_params.get("asked"),
        )

    async def log_events(self, request: Request) -> Response:
        """The log as rows of safe HTML, as they come and change."""
        job = await known_job(self._store, request)
        query = parse_query(request, LogStreamQuery, others=True)
        start, pinned = requested_position(request, query, job)
        events = _html_events(self._store, self._streams, job, start, pinned, service=query.service or "")
        return stream(request, events)

    async def cancel_job(self, request: Request) -> Response:
        """Cancel a job by a button without JavaScript, then show the page again."""
        job_id = request.path_params["job_id"]
        job = await self._store.cancel_job(job_id, cancelled_by(request))
        if job is None:
            raise not_found("job", job_id)
        return RedirectResponse(f"/jobs/{job.job_id}?asked=cancel", 303)

    async def cancel_run(self, request: Request) -> Response:
        """Cancel a whole run, then show it again."""
        run_id = request.path_params["run_id"]
        run = await self._store.cancel_run(run_id, cancelled_by(request))
        if run is None:
            raise not_found("run", run_id)
        return RedirectResponse(f"/runs/{run.run_id}?asked=cancel", 303)

    async def approve_run(self, request: Request) -> Response:
        """Approve the waiting jobs of a run, then show it."""
        run_id = request.path_params["run_id"]
        run = await self._store.approve_run(run_id)
        if run is None:
            raise not_found("run", run_id)
        return RedirectResponse(f"/runs/{run.run_id}", 303)

    async def rerun(self, request: Request) -> Response:
        """Run the same commit again, and redirect to the new run."""
        run_id = request.path_params["run_id"]
        query = parse_query(request, RerunQuery, others=True)
        again = await (self._store.rerun(run_id) if query.jobs == "all" else self._store.rerun_failed(run_id))
        run = new_run_or_refusal(again, "This run")
        if run is None:
            raise not_found("run", run_id)
        return RedirectResponse(f"/runs/{run.run_id}", 303)

    async def rerun_job(self, request: Request) -> Response:
        """Run one job and those that need it again, and redirect to the new run."""
        job = await known_job(self._store, request)
        run = new_run_or_refusal(await self._store.rerun_job(job.job_id), "This job's run")
        if run is None:
            raise not_found("job", job.job_id)
        return RedirectResponse(f"/runs/{run.run_id}", 303)

    async def workers(self, request: Request) -> Response:
        """Return the page of all workers, with the buttons that steer them."""
        parse_query(request, NoParameters)
        return self._page("workers.html", workers=await self._store.workers())

    async def steer_worker(self, request: Request) -> Response:
        """Carry out an order to a worker, given by a button."""
        await steered(self._store, request)
        return RedirectResponse("/workers", 303)

    async def schedules(self, request: Request) -> Response:
        """Return one page of the list of schedules."""
        after = parse_query(request, SchedulesPageQuery).after
        page = await self._store.schedule_store.schedules(limit=SCHEDULES_SHOWN + 1, after=after)
        shown = page[:SCHEDULES_SHOWN]
        more = f"/schedules?after={shown[-1].schedule_id}" if len(page) > len(shown) else None
        return self._page("schedules.html", schedules=shown, more=more, after=after)

    async def steer_schedule(self, request: Request) -> Response:
        """Carry out an action on a schedule, given by a button."""
        await steered_schedule(self._store.schedule_store, request)
        return RedirectResponse("/schedules", 303)

    async def palette(self, _: Request) -> Response:
        """The style sheet of the log's colours."""
        return Response(self._palette, media_type="text/css", headers={"Cache-Control": "no-cache"})

    def error(self, status: int, message: str) -> Response:
        """Return a page that says what is wrong and where to go."""
        return self._page("error.html", http_status=status, code=status, message=message)

    def _page(self, template: str, *, http_status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.text(template, **values), http_status, headers={"Cache-Control": "no-store"})

    def text(self, template: str, **values: Any) -> str:
        """Render a template as of now."""
        return self._templates.get_template(template).render(now=self._clock(), **values)


async def _html_events(
    store: JobStore,
    streams: OpenStreams,
    job: JobView,
    start: LogPosition | None,
    pinned: int | None,
    *,
    service: str,
) -> Events:
    log, known = LogRows(), ""
    if start is not None:
        await _catch_up(store, job.job_id, log, start, service)
    async with aclosing(
        follow_log(store, streams, job.job_id, start=start, pinned=pinned, service=service)
    ) as changes:
        async for what in changes:
            match what:
                case LogPiece():
                    for chunk in what.chunks:
                        # One by one: each may hold very many rows.
                        position = LogPosition(what.attempt, chunk.sequence)
                        yield _rows_event(position, await log.add((chunk,), LIVE_ROWS))
                case NewAttempt():
                    log = LogRows()
                    yield Event(name="attempt", id=f"{what.attempt}.0", data={"attempt": what.attempt})
                case LogEnded():
                    yield Event(name="end", data=ended_document(what))
                case JobView() | None:
                    job = what or job
                    # A service that writes for the first time changes the page, and not the job.
                    services = await store.logged_services(job.job_id, attempt=pinned or job.attempt)
                    version = _version(job, services)
                    yield Event(name="job", data={"version": version}) if version != known else None
                    known = version


async def _catch_up(store: JobStore, job_id: str, log: LogRows, start: LogPosition, service: str) -> None:
    """Feed `log` up to the client's position.

    Colours and line numbers depend on all earlier output.
    """
    while log.sequence < start.sequence:
        page = await store.log(
            job_id,
            attempt=start.attempt,
            after=log.sequence,
            limit=min(BATCH, start.sequence - log.sequence),
            service=service,
        )
        known = [chunk for chunk in page.chunks if chunk.sequence <= start.sequence] if page else []
        if not known:
            return
        await log.add(known, 1)


def _rows_event(position: LogPosition, update: RowsUpdate | None) -> Event | None:
    if update is None:
        return None
    rows = [{"n": row.number, "html": row.html} for row in update.rows]
    return Event(name="rows", id=str(position), data={"first": update.first, "rows": rows})


def _hidden_before(log: RenderedLog) -> int:
    """Return how many of the job's lines come before the first row shown."""
    return next((row.number - 1 for row in log.rows if row.number is not None), 0)


def _stream_url(job: JobView, log: RenderedLog, pinned: int | None, service: str) -> str:
    query = {"after": log.position, "attempt": pinned, "service": service}
    given = {name: value for name, value in query.items() if value}
    return f"/jobs/{job.job_id}/log/html-events?{urlencode(given)}"


def _version(job: JobView, services: Sequence[str]) -> str:
    """Return a version that changes with everything that a page shows about a job."""
    return format(zlib.crc32(orjson.dumps([document(job), *services])), "08x")
