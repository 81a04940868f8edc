"""API v1 of waits: why a job, or a run, does not run yet."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitExplanation
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.runs import answer, known_job
from solstice_orchestrator.web.formats.api_json import why_document
from solstice_orchestrator.web.formats.query_parameters import NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import not_found


class WhyApi:
    """The routes that end in `/why`."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs/{run_id}/why", self.run),
            Route("/jobs/{job_id}/why", self.job),
        ]

    async def job(self, request: Request) -> Response:
        """Why a job waits; null when it runs or has ended."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        why = await why_job(self._store, job.job_id)
        head = {"job_id": job.job_id, "run_id": job.run_id, "name": job.name, "state": job.state.value}
        return answer(head | {"why": why and why_document(why)})

    async def run(self, request: Request) -> Response:
        """Why a run has no jobs yet; null when it has."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        run = await self._store.run(run_id)
        if run is None:
            raise not_found("run", run_id)
        why = await why_run(self._store, run_id)
        return answer({"run_id": run_id, "state": run.state.value, "why": why and why_document(why)})


async def why_job(store: JobStore, job_id: str) -> WaitExplanation | None:
    """Why the job waits, if it does."""
    facts = await store.waiting(job_id)
    return None if facts is None else explain(facts)


async def why_run(store: JobStore, run_id: str) -> WaitExplanation | None:
    """Why the run has no jobs yet, if it has none."""
    facts = await store.planning(run_id)
    return None if facts is None else explain(facts)
