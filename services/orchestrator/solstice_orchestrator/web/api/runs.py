"""API v1 of runs and jobs, in JSON and server-sent events."""

from collections.abc import Mapping
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.http.access import LOCAL
from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import JobFilters, JobView, RunFilters, RunView
from solstice_orchestrator.web.api.following import MAX_JOBS, follow_run, follow_runs
from solstice_orchestrator.web.formats.api_json import document, job_document, run_document
from solstice_orchestrator.web.formats.cursors import cursor_of, position_of
from solstice_orchestrator.web.formats.query_parameters import (
    JobsQuery,
    NoParameters,
    PriorityQuery,
    RerunQuery,
    RunCountsQuery,
    RunsQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import HttpRefusal, invalid_cursor, not_found
from solstice_orchestrator.web.formats.sse import Events, EventStream, OpenStreams

RUNS: Final = "runs"
JOBS: Final = "jobs"
_WHY_NOT: Final = {
    RerunRefusal.NOT_ENDED: "has not ended, so it is not known what fails of it: wait, or cancel it first",
    RerunRefusal.NOTHING_FAILED: "has no job that did not succeed: run all of it again instead",
}


class RunsApi:
    """The routes below `/api/v1`."""

    def __init__(self, store: JobStore, streams: OpenStreams) -> None:
        self._store = store
        self._streams = streams

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs", self.runs),
            Route("/run-counts", self.run_counts),
            Route("/runs/{run_id}", self.run),
            Route("/runs/{run_id}/events", self.run_events),
            Route("/runs/{run_id}/cancel", self.cancel_run, methods=["POST"]),
            Route("/runs/{run_id}/approve", self.approve_run, methods=["POST"]),
            Route("/runs/{run_id}/rerun", self.rerun, methods=["POST"]),
            Route("/requests/{request_id}", self.request),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_id}", self.job),
            Route("/jobs/{job_id}/attempts", self.attempts),
            Route("/jobs/{job_id}/cancel", self.cancel_job, methods=["POST"]),
            Route("/jobs/{job_id}/rerun", self.rerun_job, methods=["POST"]),
            Route("/jobs/{job_id}/priority", self.prioritise, methods=["POST"]),
            Route("/events", self.events),
        ]

    async def runs(self, request: Request) -> Response:
        """One page of runs, newest first."""
        query = parse_query(request, RunsQuery)
        filters = RunFilters(
            repository=query.repository,
            ref=query.ref,
            state=query.state,
            label=query.label,
            priority=query.priority,
        )
        page = await self._store.runs(
            limit=query.limit, after=_position(query.after, RUNS, filters), **filters
        )
        following = page.next and cursor_of(page.next, RUNS, filters)
        return answer({"runs": [document(run) for run in page.runs], "next": following})

    async def run_counts(self, request: Request) -> Response:
        """How many runs are in each final state."""
        query = parse_query(request, RunCountsQuery)
        found = await self._store.run_counts(
            since_seconds=query.since_seconds, repository=query.repository, ref=query.ref
        )
        counts = {state.value: found.get(state, 0) for state in RunState if state.final}
        return answer({"counts": counts, "unfinished": sum(found.values()) - sum(counts.values())})

    async def run(self, request: Request) -> Response:
        """One run with its jobs."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.run(run_id), run_id)

    async def request(self, request: Request) -> Response:
        """The run that a request became; 404 until it is admitted."""
        parse_query(request, NoParameters)
        request_id = request.path_params["request_id"]
        run = await self._store.run_of_request(request_id)
        if run is None:
            raise HttpRefusal(
                404, "not_found", f"No run of request {request_id!r}: not admitted yet, or unknown."
            )
        return await self._run(run, request_id)

    async def jobs(self, request: Request) -> Response:
        """One page of jobs: of one run in workflow order, else newest first."""
        query = parse_query(request, JobsQuery)
        filters = JobFilters(
            repository=query.repository,
            ref=query.ref,
            state=query.state,
            label=query.label,
            priority=query.priority,
        )
        of = f"{JOBS} of {query.run_id}"
        jobs = await self._store.jobs(
            limit=query.limit + 1, run_id=query.run_id, after=_position(query.after, of, filters), **filters
        )
        shown = jobs[: query.limit]
        following = cursor_of(shown[-1].job_id, of, filters) if len(jobs) > len(shown) else None
        return answer({"jobs": [document(job) for job in shown], "next": following})

    async def job(self, request: Request) -> Response:
        """One job with its attempts, and the artifacts and outputs that it hands out."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        return answer(
            job_document(
                job,
                await self._store.attempts(job.job_id),
                await self._store.artifacts(job_id=job.job_id),
                await self._store.outputs(job.job_id),
            )
        )

    async def attempts(self, request: Request) -> Response:
        """Every try at a job, oldest first."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        attempts = await self._store.attempts(job.job_id)
        return answer({"attempts": [document(attempt) for attempt in attempts]})

    async def run_events(self, request: Request) -> Response:
        """One run, at each of its changes."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        if await self._store.run(run_id) is None:
            raise not_found("run", run_id)
        return stream(request, follow_run(self._store, self._streams, run_id))

    async def events(self, request: Request) -> Response:
        """An event at each change of the newest runs."""
        parse_query(request, NoParameters)
        return stream(request, follow_runs(self._store, self._streams))

    async def cancel_job(self, request: Request) -> Response:
        """Cancel a job."""
        parse_query(request, NoParameters)
        job_id = request.path_params["job_id"]
        job = await self._store.cancel_job(job_id, cancelled_by(request))
        if job is None:
            raise not_found("job", job_id)
        return answer(document(job), status=202)

    async def cancel_run(self, request: Request) -> Response:
        """Cancel every job of a run."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        run = await self._store.cancel_run(run_id, cancelled_by(request))
        return await self._run(run, run_id, status=202)

    async def approve_run(self, request: Request) -> Response:
        """Approve the jobs of a run that wait for approval."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.approve_run(run_id), run_id)

    async def rerun(self, request: Request) -> Response:
        """Run the same commit again as a new run, or only its failed jobs."""
        query, run_id = parse_query(request, RerunQuery), request.path_params["run_id"]
        run = await (self._store.rerun(run_id) if query.jobs == "all" else self._store.rerun_failed(run_id))
        return await self._run(new_run_or_refusal(run, f"Run {run_id!r}"), run_id, status=201)

    async def rerun_job(self, request: Request) -> Response:
        """Run one job again, with its dependents, as a new run."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        again = await self._store.rerun_job(job.job_id)
        run = new_run_or_refusal(again, f"The run of job {job.job_id!r}")
        return await self._run(run, job.run_id, status=201)

    async def prioritise(self, request: Request) -> Response:
        """Move an unfinished job to another priority class, as its newest job."""
        query, job_id = parse_query(request, PriorityQuery), request.path_params["job_id"]
        job = await self._store.prioritise(job_id, query.priority)
        if job is None:
            raise not_found("job", job_id)
        if job.state.final:
            raise HttpRefusal(
                409, "has_ended", f"Job {job_id!r} has ended: {job.state}. Run it again instead."
            )
        return answer(document(job))

    async def _run(self, run: RunView | None, name: str, *, status: int = 200) -> Response:
        if run is None:
            raise not_found("run", name)
        jobs = await self._store.jobs(run_id=run.run_id, limit=MAX_JOBS)
        return answer(run_document(run, jobs), status=status)


def _position(cursor: str | None, of: str, filters: Mapping[str, object]) -> str | None:
    """The id after which the requested page begins."""
    if cursor is None:
        return None
    position = position_of(cursor, of, filters)
    if position is None:
        raise invalid_cursor()
    return position


def answer(content: object, *, status: int = 200) -> Response:
    """JSON that no cache may store: it describes the present."""
    return Response(
        orjson.dumps(content), status, {"Cache-Control": "no-store"}, media_type="application/json"
    )


def stream(request: Request, events: Events) -> Response:
    """The events; for HEAD only the headers."""
    if request.method == "HEAD":
        return Response(media_type=EventStream.media_type)
    return EventStream(events)


def new_run_or_refusal(run: RunView | RerunRefusal | None, what: str) -> RunView | None:
    """The new run; HttpRefusal says why there is none, about `what`."""
    if isinstance(run, RerunRefusal):
        raise HttpRefusal(409, run.value, f"{what} {_WHY_NOT[run]}.")
    return run


def cancelled_by(request: Request) -> str:
    """The requester of a cancel, for people.

    It is the name of a token, or this machine.
    """
    name: str = request.scope["caller"]
    return "cancelled on this machine" if name == LOCAL else f"cancelled by {name}"


async def known_job(store: JobStore, request: Request) -> JobView:
    """The job of the path."""
    job_id = request.path_params["job_id"]
    job = await store.job(job_id)
    if job is None:
        raise not_found("job", job_id)
    return job
