"""Streams changes: the log of a job, one run, the changes of a list."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.schedule_store import ScheduleStore
from solstice_orchestrator.store.views import JobView, LogChunk
from solstice_orchestrator.web.formats.api_json import run_document
from solstice_orchestrator.web.formats.query_parameters import LARGEST
from solstice_orchestrator.web.formats.sse import ChangeSource, Event, Events, OpenStreams

BATCH: Final = 16
"""Chunks read at once, at most 1 MiB: small enough that one busy log does not delay the others."""
MAX_JOBS: Final = 1000
RUN_SETTLE_SECONDS: Final = 0.25
LIST_SETTLE_SECONDS: Final = 1.0
_POSITION: Final = re.compile(r"(\d{1,10})\.(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in a job's logs: everything up to `sequence` of `attempt` is known."""

    attempt: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> "LogPosition | None":
        """Parse `ATTEMPT.SEQUENCE`, as in the events' ids; None for anything else."""
        match = _POSITION.fullmatch(text)
        if match is None or max(map(int, match.groups())) > LARGEST:
            return None
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.attempt}.{self.sequence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """More of the log of one attempt."""

    attempt: int
    after: int
    """The last sent sequence; when the first chunk here is not the next one, chunks are missing."""
    chunks: Sequence[LogChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAttempt:
    """The previous attempt has ended, and the log of this one begins."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnded:
    """The log has ended."""

    state: JobState
    reason: Reason
    exit_code: int | None


LogUpdate = LogPiece | NewAttempt | JobView | LogEnded | None


async def follow_log(
    store: JobStore,
    streams: OpenStreams,
    job_id: str,
    *,
    start: LogPosition | None,
    pinned: int | None = None,
    service: str = "",
) -> AsyncGenerator[LogUpdate, None]:
    """Yield the log of a job or its service, from `start` to the job's end.

    Without `start`, it begins with the newest attempt.

    With `pinned`, it is the log of that attempt only. A JobView comes first, and after every other change of
    the job.
    """
    known: JobView | None = None
    position = start
    async with streams.changes(store) as changes:
        while await changes.wait():
            # Read the job first, then its log: once a job has ended, all of its log is stored.
            job = await store.job(job_id)
            if job is None:
                return
            newest = pinned or job.attempt
            if position is None or position.attempt == 0:
                position = LogPosition(newest, 0)
            while True:
                page = await store.log(
                    job_id, attempt=position.attempt, after=position.sequence, limit=BATCH, service=service
                )
                if position.attempt > 0 and page is not None and page.chunks:
                    yield LogPiece(attempt=position.attempt, after=position.sequence, chunks=page.chunks)
                    position = LogPosition(position.attempt, page.chunks[-1].sequence)
                elif position.attempt < newest:
                    position = LogPosition(position.attempt + 1, 0)
                    yield NewAttempt(attempt=position.attempt)
                else:
                    break
            yield job if job != known else None
            known = job
            ended = await _ended(store, job, pinned)
            if ended is not None:
                yield ended
                return


async def follow_run(store: JobStore, streams: OpenStreams, run_id: str) -> Events:
    """Yield `run` events: the run with its jobs, then at every change until its end."""
    sent = None
    async with streams.changes(store) as changes:
        while await changes.wait(RUN_SETTLE_SECONDS):
            run = await store.run(run_id)
            if run is None:
                return
            now = run_document(run, await store.jobs(run_id=run_id, limit=MAX_JOBS))
            yield Event(name="run", data=now) if now != sent else None
            sent = now
            if run.state.final:
                return


def follow_runs(store: JobStore, streams: OpenStreams) -> Events:
    """Yield `changed` whenever the newest runs have changed."""

    async def read() -> object:
        return (await store.runs(limit=50)).runs

    return _changed(store, streams, read)


def follow_workers(store: JobStore, streams: OpenStreams) -> Events:
    """Yield `changed` whenever a worker came, left, got an order, or has other jobs."""

    async def read() -> object:
        # Everything but the heartbeats, which change all the time.
        return [replace(worker, seen_at=0.0) for worker in await store.workers()]

    return _changed(store, streams, read)


def follow_schedules(schedule_store: ScheduleStore, streams: OpenStreams) -> Events:
    """Yield `changed` whenever one of the first schedules, or its last tick, changed."""

    async def read() -> object:
        return await schedule_store.schedules(limit=200)

    return _changed(schedule_store, streams, read)


async def _changed(
    source: ChangeSource, streams: OpenStreams, read: Callable[[], Awaitable[object]]
) -> Events:
    """Yield `changed` whenever `read` returns another value than before."""
    known = None
    async with streams.changes(source) as changes:
        while await changes.wait(LIST_SETTLE_SECONDS):
            now = await read()
            yield Event(name="changed", data={}) if known is not None and now != known else None
            known = now


async def _ended(store: JobStore, job: JobView, pinned: int | None) -> LogEnded | None:
    if pinned is None or (job.state.final and pinned == job.attempt):
        ended = LogEnded(state=job.state, reason=job.reason, exit_code=job.exit_code)
        return ended if job.state.final else None
    for attempt in await store.attempts(job.job_id):
        if attempt.number == pinned and attempt.finished_at is not None:
            return LogEnded(state=attempt.state, reason=attempt.reason, exit_code=attempt.exit_code)
    return None
