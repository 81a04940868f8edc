"""API v1 of logs: by sequence, by bytes, and live."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import JobView, LogChunk, LogState
from solstice_orchestrator.web.api.following import (
    BATCH,
    LogEnded,
    LogPiece,
    LogPosition,
    NewAttempt,
    follow_log,
)
from solstice_orchestrator.web.api.log_rows import LogRows
from solstice_orchestrator.web.api.runs import answer, known_job, stream
from solstice_orchestrator.web.formats.api_json import chunk_document, gap_document
from solstice_orchestrator.web.formats.byte_ranges import ByteRange, byte_range
from solstice_orchestrator.web.formats.log_text import LogGap, LogText, pieces
from solstice_orchestrator.web.formats.query_parameters import (
    AttemptQuery,
    LogQuery,
    LogStreamQuery,
    PlainLogQuery,
    ServiceQuery,
    StreamQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import HttpRefusal
from solstice_orchestrator.web.formats.sse import Event, Events, OpenStreams

LONGEST_CHARACTER: Final = 4
"""The most bytes of a UTF-8 sequence: decoding begins this far back to complete a character."""
PAGE_BYTES: Final = 1024 * 1024
"""A page of a log ends with the chunk that reaches this size, even below the requested limit."""
TEXT: Final = "text/plain; charset=utf-8"


class LogApi:
    """The routes below `/api/v1/jobs/{job_id}/log`."""

    def __init__(self, store: JobStore, streams: OpenStreams) -> None:
        self._store = store
        self._streams = streams

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/jobs/{job_id}/log", self.log),
            Route("/jobs/{job_id}/log.txt", self.text),
            Route("/jobs/{job_id}/log/events", self.events),
        ]

    async def log(self, request: Request) -> Response:
        """Chunks of one attempt's log after a sequence."""
        query = parse_query(request, LogQuery)
        job = await known_job(self._store, request)
        # A character may begin in the chunks before the requested ones.
        behind = min(query.after, LONGEST_CHARACTER)
        last = query.after - behind
        attempt, chunks, size, state = requested_attempt(query, job), list[LogChunk](), 0, LogState.OPEN
        service = await self._service(query, job)
        while (left := query.limit + behind - len(chunks)) > 0 and size < PAGE_BYTES:
            page = await self._store.log(
                job.job_id, attempt=attempt, after=last, limit=min(left, BATCH), service=service
            )
            if page is None:
                break
            attempt, state = page.attempt, page.state
            chunks += page.chunks
            size += sum(len(chunk.data) for chunk in page.chunks)
            if not page.chunks or state is LogState.CLOSED:
                break
            last = page.chunks[-1].sequence
        text, shown = LogText(), list[dict[str, object]]()
        for chunk in chunks:
            words = text.of(chunk, last=state is LogState.CLOSED and chunk is chunks[-1])
            if chunk.sequence > query.after and len(shown) < query.limit:
                shown.append(chunk_document(chunk, words))
        shown_chunks = [chunk for chunk in chunks if chunk.sequence > query.after][: query.limit]
        gaps = [gap_document(gap) for gap in pieces(query.after, shown_chunks) if isinstance(gap, LogGap)]
        if shown_chunks and shown_chunks[-1] is not chunks[-1]:
            state = LogState.OPEN
        return answer({"attempt": attempt, "state": state.value, "chunks": shown, "missing": gaps})

    async def text(self, request: Request) -> Response:
        """One attempt's log so far: the original bytes, or those of a `Range`.

        With `?plain=1`, the text as a person reads it. The log of a service is always whole.
        """
        query = parse_query(request, PlainLogQuery)
        job = await known_job(self._store, request)
        attempt = requested_attempt(query, job) or job.attempt
        service = await self._service(query, job)
        if query.plain == "1":
            return StreamingResponse(_plain(self._store, job.job_id, attempt, service), media_type=TEXT)
        if service:
            return StreamingResponse(_raw(self._store, job.job_id, attempt, service=service), media_type=TEXT)
        # We have no validator that an If-Range could match (RFC 9110, section 13.1.5).
        byte_span = None if "if-range" in request.headers else byte_range(request.headers.get("range"))
        if byte_span is not None:
            return await self._part(job, attempt, byte_span)
        body = _raw(self._store, job.job_id, attempt)
        return StreamingResponse(body, media_type=TEXT, headers={"Accept-Ranges": "bytes"})

    async def events(self, request: Request) -> Response:
        """The log as it is written: `chunk`, `gap`, `attempt` and `end` events.

        `gap` stands for missing chunks; `attempt` says that a new attempt begins.
        """
        query = parse_query(request, LogStreamQuery)
        job = await known_job(self._store, request)
        start, pinned = requested_position(request, query, job)
        # A service of a job that has not ended may write later.
        service = await self._service(query, job) if job.state.final else query.service or ""
        events = _log_events(self._store, self._streams, job.job_id, start, pinned, service=service)
        return stream(request, events)

    async def _service(self, query: ServiceQuery, job: JobView) -> str:
        """Return the requested service; empty for the job itself."""
        if not query.service:
            return ""
        attempt = requested_attempt(query, job) or job.attempt
        known = await self._store.logged_services(job.job_id, attempt=attempt)
        if query.service not in known:
            logs = f"those of: {', '.join(known)}" if known else "none"
            raise HttpRefusal(
                404,
                "not_found",
                f"Attempt {attempt} has no log of a service {query.service!r}; of services it has {logs}.",
            )
        return query.service

    async def _part(self, job: JobView, attempt: int, byte_span: ByteRange) -> Response:
        first = await self._store.log_byte(job.job_id, attempt=attempt, byte=byte_span.first)
        last = first.total - 1 if byte_span.last is None else min(byte_span.last, first.total - 1)
        if first.start > last:
            raise HttpRefusal(
                416,
                "no_such_range",
                f"The log has {first.total} bytes so far.",
                {"Content-Range": f"bytes */{first.total}"},
            )
        # The final length is unknown while the log is written.
        total = first.total if job.state.final or attempt < job.attempt else "*"
        size = last - first.start + 1
        return StreamingResponse(
            _cut(
                _raw(self._store, job.job_id, attempt, first.sequence - 1), first.start - first.begins, size
            ),
            206,
            media_type=TEXT,
            headers={
                "Accept-Ranges": "bytes",
                "Content-Range": f"bytes {first.start}-{last}/{total}",
                "Content-Length": str(size),
            },
        )


def requested_attempt(query: AttemptQuery, job: JobView) -> int | None:
    """The requested attempt; None means the newest."""
    if query.attempt is not None and query.attempt > job.attempt:
        raise HttpRefusal(
            404, "not_found", f"Job {job.job_id!r} has had {job.attempt} attempts, not {query.attempt}."
        )
    return query.attempt


def requested_position(
    request: Request, query: StreamQuery, job: JobView
) -> tuple[LogPosition | None, int | None]:
    """Where a stream begins, and the attempt that it follows.

    `Last-Event-ID` overrides `?after=` (`ATTEMPT.SEQUENCE`, or the sequence alone), since a client that
    reconnects repeats its query.
    """
    pinned = requested_attempt(query, job)
    after = query.after
    if after and after.isascii() and after.isdecimal():
        after = f"{pinned or job.attempt}.{after}"
    text = request.headers.get("last-event-id") or after
    if not text:
        return LogPosition(pinned, 0) if pinned else None, pinned
    position = LogPosition.parse(text)
    if position is None or (pinned and position.attempt != pinned):
        raise HttpRefusal(400, "invalid_parameter", f"after must be ATTEMPT.SEQUENCE, not {text[:100]!r}.")
    return position, pinned


async def _log_events(
    store: JobStore,
    streams: OpenStreams,
    job_id: str,
    start: LogPosition | None,
    pinned: int | None,
    *,
    service: str,
) -> Events:
    text = LogText()
    if start is not None and start.sequence:
        behind = min(start.sequence, LONGEST_CHARACTER)
        page = await store.log(
            job_id,
            attempt=start.attempt,
            after=start.sequence - behind,
            limit=behind,
            service=service,
        )
        for chunk in page.chunks if page else ():
            if chunk.sequence <= start.sequence:
                text.of(chunk)
    async with aclosing(
        follow_log(store, streams, job_id, start=start, pinned=pinned, service=service)
    ) as changes:
        async for what in changes:
            match what:
                case LogPiece():
                    for piece in pieces(what.after, what.chunks):
                        for event in _piece_events(what.attempt, piece, text):
                            yield event
                case NewAttempt():
                    text = LogText()
                    yield Event(name="attempt", id=f"{what.attempt}.0", data={"attempt": what.attempt})
                case LogEnded():
                    yield Event(name="end", data=ended_document(what))
                case _:
                    yield None


def _piece_events(attempt: int, piece: LogGap | Sequence[LogChunk], text: LogText) -> Iterator[Event]:
    if isinstance(piece, LogGap):
        yield Event(name="gap", data=gap_document(piece))
        return
    for chunk in piece:
        data = chunk_document(chunk, text.of(chunk))
        yield Event(name="chunk", id=f"{attempt}.{chunk.sequence}", data=data)


def ended_document(ended: LogEnded) -> dict[str, str | int | None]:
    """The data of an `end` event."""
    return {"state": ended.state.value, "reason": ended.reason.value, "exit_code": ended.exit_code}


async def _raw(
    store: JobStore, job_id: str, attempt: int, after: int = 0, service: str = ""
) -> AsyncGenerator[bytes, None]:
    while (
        page := await store.log(job_id, attempt=attempt, after=after, limit=BATCH, service=service)
    ) and page.chunks:
        after = page.chunks[-1].sequence
        yield b"".join(chunk.data for chunk in page.chunks)


async def _cut(body: AsyncGenerator[bytes, None], skip: int, size: int) -> AsyncGenerator[bytes, None]:
    """`size` bytes of a body, after the first `skip`."""
    async with aclosing(body):
        async for data in body:
            part = data[skip : skip + size]
            skip, size = max(0, skip - len(data)), size - len(part)
            yield part
            if not size:
                return


async def _plain(store: JobStore, job_id: str, attempt: int, service: str) -> AsyncGenerator[bytes, None]:
    """The log without control sequences, each line in its last form.

    The open line is at the end.
    """
    log, last = LogRows(), ""
    while (
        page := await store.log(job_id, attempt=attempt, after=log.sequence, limit=BATCH, service=service)
    ) and page.chunks:
        attempt = page.attempt
        for chunk in page.chunks:
            # One by one: each may hold very many rows.
            update = await log.add((chunk,))
            if update:
                *lines, last = (row.text for row in update.rows)
                if log.line_is_open:
                    yield "".join(f"{line}\n" for line in lines).encode()
                else:
                    yield "".join(f"{line}\n" for line in (*lines, last)).encode()
                    last = ""
    yield last.encode()
