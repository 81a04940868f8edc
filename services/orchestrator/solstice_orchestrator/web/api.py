"""API v1: what programs ask, in JSON and server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.jobs import JobState, RunState
from solstice_orchestrator.store.protocol import JobStore, JobView, RunView
from solstice_orchestrator.web.following import (
    BATCH,
    MAX_JOBS,
    Ended,
    NewAttempt,
    Piece,
    Position,
    follow_log,
    follow_run,
    follow_runs,
)
from solstice_orchestrator.web.refusals import Refusal, limit, not_found, number
from solstice_orchestrator.web.rows import LogRows, utf8
from solstice_orchestrator.web.sse import Event, Events, EventStream, Streams
from solstice_orchestrator.web.views import chunk_document, document, job_document, run_document

StateT = TypeVar("StateT", RunState, JobState)

LONGEST_CHARACTER: Final = 4
"""Bytes of a UTF-8 sequence: how far back decoding has to begin to know what is half read."""
MAX_CHUNKS: Final = 1000


class Api:
    """The routes below `/api/v1`."""

    def __init__(self, store: JobStore, streams: Streams) -> None:
        self._store = store
        self._streams = streams

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs", self.runs),
            Route("/runs/{run_id}", self.run),
            Route("/runs/{run_id}/events", self.run_events),
            Route("/runs/{run_id}/cancel", self.cancel_run, methods=["POST"]),
            Route("/runs/{run_id}/approve", self.approve_run, methods=["POST"]),
            Route("/runs/{run_id}/rerun", self.rerun, methods=["POST"]),
            Route("/requests/{request_id}", self.request),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_id}", self.job),
            Route("/jobs/{job_id}/log", self.log),
            Route("/jobs/{job_id}/log.txt", self.log_text),
            Route("/jobs/{job_id}/log/events", self.log_events),
            Route("/jobs/{job_id}/cancel", self.cancel_job, methods=["POST"]),
            Route("/events", self.events),
        ]

    async def runs(self, request: Request) -> Response:
        """One page of runs, newest first."""
        page = await self._store.runs(
            limit=limit(request),
            after=request.query_params.get("after") or None,
            repository=request.query_params.get("repository") or None,
            state=asked_state(request, RunState),
        )
        return answer({"runs": [document(run) for run in page.runs], "next": page.next})

    async def run(self, request: Request) -> Response:
        """One run with its jobs."""
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.run(run_id), run_id)

    async def request(self, request: Request) -> Response:
        """The run that a request became; 404 until it is admitted."""
        request_id = request.path_params["request_id"]
        run = await self._store.run_of_request(request_id)
        if run is None:
            raise Refusal(
                404, "not_found", f"No run of request {request_id!r}: not admitted yet, or unknown."
            )
        return await self._run(run, request_id)

    async def jobs(self, request: Request) -> Response:
        """Jobs: of one run in workflow order, else newest first."""
        jobs = await self._store.jobs(
            run_id=request.query_params.get("run_id") or None,
            state=asked_state(request, JobState),
            limit=limit(request),
        )
        return answer({"jobs": [document(job) for job in jobs]})

    async def job(self, request: Request) -> Response:
        """One job with its attempts."""
        job = await known_job(self._store, request)
        return answer(job_document(job, await self._store.attempts(job.job_id)))

    async def log(self, request: Request) -> Response:
        """Chunks of one attempt's log after a sequence."""
        job = await known_job(self._store, request)
        attempt, after = asked_attempt(request, job), number(request, "after", 0)
        # A character may begin in the chunks before the asked-for ones.
        behind = min(after, LONGEST_CHARACTER)
        page = await self._store.log(
            job.job_id,
            attempt=attempt,
            after=after - behind,
            limit=limit(request, BATCH, MAX_CHUNKS) + behind,
        )
        if page is None:
            raise not_found("job", job.job_id)
        decoder, chunks = utf8(), []
        for chunk in page.chunks:
            is_last = page.state == "closed" and chunk is page.chunks[-1]
            text = decoder.decode(chunk.data, final=is_last)
            if chunk.sequence > after:
                chunks.append(chunk_document(chunk, text))
        return answer({"attempt": page.attempt, "state": page.state.value, "chunks": chunks})

    async def log_text(self, request: Request) -> Response:
        """One attempt's whole log so far: the bytes as they came, or with `?plain=1` what a person would read."""
        job = await known_job(self._store, request)
        attempt = asked_attempt(request, job)
        is_plain = request.query_params.get("plain") not in {None, "", "0"}
        body = (_plain if is_plain else _raw)(self._store, job.job_id, attempt)
        return StreamingResponse(body, media_type="text/plain; charset=utf-8")

    async def log_events(self, request: Request) -> Response:
        """The log as it is written."""
        job = await known_job(self._store, request)
        start, pinned = asked_position(request, job)
        return stream(request, _log_events(self._store, self._streams, job.job_id, start, pinned))

    async def run_events(self, request: Request) -> Response:
        """One run, whenever it changes."""
        run_id = request.path_params["run_id"]
        if await self._store.run(run_id) is None:
            raise not_found("run", run_id)
        return stream(request, follow_run(self._store, self._streams, run_id))

    async def events(self, request: Request) -> Response:
        """That the newest runs changed."""
        return stream(request, follow_runs(self._store, self._streams))

    async def cancel_job(self, request: Request) -> Response:
        """Ask for the end of a job."""
        job_id = request.path_params["job_id"]
        job = await self._store.cancel_job(job_id)
        if job is None:
            raise not_found("job", job_id)
        return answer(document(job), status=202)

    async def cancel_run(self, request: Request) -> Response:
        """Ask for the end of every job of a run."""
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.cancel_run(run_id), run_id, status=202)

    async def approve_run(self, request: Request) -> Response:
        """Let the jobs of a run that wait for approval go on."""
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.approve_run(run_id), run_id)

    async def rerun(self, request: Request) -> Response:
        """The same commit again, as a new run."""
        run_id = request.path_params["run_id"]
        return await self._run(await self._store.rerun(run_id), run_id, status=201)

    async def _run(self, run: RunView | None, asked: str, *, status: int = 200) -> Response:
        if run is None:
            raise not_found("run", asked)
        jobs = await self._store.jobs(run_id=run.run_id, limit=MAX_JOBS)
        return answer(run_document(run, jobs), status=status)


def answer(content: object, *, status: int = 200) -> Response:
    """JSON that no cache keeps: it is about now."""
    return Response(
        orjson.dumps(content), status, {"Cache-Control": "no-store"}, media_type="application/json"
    )


def stream(request: Request, events: Events) -> Response:
    """The events; for HEAD only what they would come as."""
    if request.method == "HEAD":
        return Response(media_type=EventStream.media_type)
    return EventStream(events)


async def known_job(store: JobStore, request: Request) -> JobView:
    """The job that the path names."""
    job_id = request.path_params["job_id"]
    job = await store.job(job_id)
    if job is None:
        raise not_found("job", job_id)
    return job


def asked_state(request: Request, states: type[StateT]) -> StateT | None:
    """The `state` of the query."""
    text = request.query_params.get("state")
    if not text:
        return None
    try:
        return states(text)
    except ValueError:
        known = ", ".join(state.value for state in states)
        raise Refusal(400, "invalid_parameter", f"state must be one of {known}, not {text!r}.") from None


def asked_attempt(request: Request, job: JobView) -> int | None:
    """The `attempt` of the query; None means the newest."""
    if not request.query_params.get("attempt"):
        return None
    attempt = number(request, "attempt", 0, least=1)
    if attempt > job.attempt:
        raise Refusal(404, "not_found", f"Job {job.job_id!r} has had {job.attempt} attempts, not {attempt}.")
    return attempt


def asked_position(request: Request, job: JobView) -> tuple[Position | None, int | None]:
    """Where a stream begins, and the attempt that it keeps to.

    `Last-Event-ID` wins over `?after=` (`ATTEMPT.SEQUENCE`, or the sequence alone), since a client that comes
    again repeats the query as it was.
    """
    pinned = asked_attempt(request, job)
    after = request.query_params.get("after")
    if after and after.isascii() and after.isdecimal():
        after = f"{pinned or job.attempt}.{after}"
    text = request.headers.get("last-event-id") or after
    if not text:
        return Position(pinned, 0) if pinned else None, pinned
    position = Position.parse(text)
    if position is None or (pinned and position.attempt != pinned):
        raise Refusal(400, "invalid_parameter", f"after must be ATTEMPT.SEQUENCE, not {text!r}.")
    return position, pinned


async def _log_events(
    store: JobStore, streams: Streams, job_id: str, start: Position | None, pinned: int | None
) -> Events:
    decoder = utf8()
    if start is not None and start.sequence:
        behind = min(start.sequence, LONGEST_CHARACTER)
        page = await store.log(job_id, attempt=start.attempt, after=start.sequence - behind, limit=behind)
        for chunk in page.chunks if page else ():
            if chunk.sequence <= start.sequence:
                decoder.decode(chunk.data)
    async with aclosing(follow_log(store, streams, job_id, start=start, pinned=pinned)) as told:
        async for what in told:
            match what:
                case Piece():
                    for chunk in what.chunks:
                        yield Event(
                            name="chunk",
                            id=f"{what.attempt}.{chunk.sequence}",
                            data=chunk_document(chunk, decoder.decode(chunk.data)),
                        )
                case NewAttempt():
                    decoder = utf8()
                    yield Event(name="attempt", id=f"{what.attempt}.0", data={"attempt": what.attempt})
                case Ended():
                    yield Event(name="end", data=ended_document(what))
                case _:
                    yield None


def ended_document(ended: Ended) -> dict[str, str | int | None]:
    """The data of an `end` event."""
    return {"state": ended.state.value, "reason": ended.reason.value, "exit_code": ended.exit_code}


async def _raw(store: JobStore, job_id: str, attempt: int | None) -> AsyncGenerator[bytes, None]:
    after = 0
    while (page := await store.log(job_id, attempt=attempt, after=after, limit=BATCH)) and page.chunks:
        attempt, after = page.attempt, page.chunks[-1].sequence
        yield b"".join(chunk.data for chunk in page.chunks)


async def _plain(store: JobStore, job_id: str, attempt: int | None) -> AsyncGenerator[bytes, None]:
    """Without control sequences, each line as it was last; the open one at the end."""
    log, last = LogRows(), ""
    while (page := await store.log(job_id, attempt=attempt, after=log.sequence, limit=BATCH)) and page.chunks:
        attempt, update = page.attempt, await log.add(page.chunks)
        if update:
            *lines, last = (row.text for row in update.rows)
            if log.line_is_open:
                yield "".join(f"{line}\n" for line in lines).encode()
            else:
                yield "".join(f"{line}\n" for line in (*lines, last)).encode()
                last = ""
    yield last.encode()
