"""API v1 of explanations: why a job or run waits, or what became of it."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.cli.terminal import without_controls
from solstice_common.messages.states import FINAL, JobState
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitExplanation
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import JobView, RunView
from solstice_orchestrator.web.api.following import MAX_JOBS
from solstice_orchestrator.web.api.runs import answer, known_job
from solstice_orchestrator.web.formats.api_json import Document, why_document
from solstice_orchestrator.web.formats.explanations import (
    ExplanationFacts,
    decisive_job,
    explained,
    lines_of,
)
from solstice_orchestrator.web.formats.log_text import LogText
from solstice_orchestrator.web.formats.query_parameters import NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import not_found

LOG_BYTES: Final = 16_000
"""Of the end of a log: more than an explanation can have."""
CHUNKS: Final = 200
_WAITS: Final = frozenset(JobState) - FINAL - {JobState.RUNNING}


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


class ExplanationsApi:
    """The routes that end in `/explain`."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs/{run_id}/explain", self.run),
            Route("/jobs/{job_id}/explain", self.job),
        ]

    async def run(self, request: Request) -> Response:
        """What became of a run, by its worst job, and what to do."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        run = await self._store.run(run_id)
        if run is None:
            raise not_found("run", run_id)
        jobs = await self._store.jobs(run_id=run_id, limit=MAX_JOBS)
        return answer(await self._explained(run, decisive_job(jobs)))

    async def job(self, request: Request) -> Response:
        """What became of a job, and what to do."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        run = await self._store.run(job.run_id)
        if run is None:
            raise not_found("run", job.run_id)
        return answer(await self._explained(run, job))

    async def _explained(self, run: RunView, job: JobView | None) -> Document:
        store = self._store
        if job is None:
            return explained(ExplanationFacts(run=run, job=None, why=await why_run(store, run.run_id)))
        reports = [each for each in await store.reports(job_id=job.job_id) if each.attempt == job.attempt]
        return explained(
            ExplanationFacts(
                run=run,
                job=job,
                jobs=await store.jobs(run_id=run.run_id, limit=MAX_JOBS),
                report=reports[-1].report if reports else None,
                log=lines_of(await self._log_end(job)) if job.attempt else (),
                why=await why_job(store, job.job_id) if job.state in _WAITS else None,
            )
        )

    async def _log_end(self, job: JobView) -> str:
        found = await self._store.log_byte(job.job_id, attempt=job.attempt, byte=-LOG_BYTES)
        page = await self._store.log(job.job_id, attempt=job.attempt, after=found.sequence - 1, limit=CHUNKS)
        decoder = LogText()
        return without_controls("".join(map(decoder.of, page.chunks if page else ())))


async def why_job(store: JobStore, job_id: str) -> WaitExplanation | None:
    """Why the job waits, if it does."""
    facts = await store.waiting(job_id)
    return None if facts is None else explain(facts)


async def why_run(store: JobStore, run_id: str) -> WaitExplanation | None:
    """Why the run has no jobs yet, if it has none."""
    facts = await store.planning(run_id)
    return None if facts is None else explain(facts)
