"""What readers of the job store see: runs, jobs, attempts and logs, and what they may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    number: int
    worker_id: str
    state: JobState
    reason: Reason
    started_at: float
    finished_at: float | None
    exit_code: int | None
    step: str | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as readers see it."""

    job_id: str
    run_id: str
    name: str
    state: JobState
    reason: Reason
    detail: str
    runs_on: str
    needs: tuple[str, ...]
    priority: Priority
    attempt: int
    """How often it was claimed; 0 before the first time."""
    created_at: float
    started_at: float | None
    finished_at: float | None
    retry_at: float | None
    exit_code: int | None
    step: str | None
    worker_id: str | None
    retries: int = 0
    """Its author's own budget for failures of the job itself."""
    retried: int = 0
    """How much of that is spent."""
    sequence: int = 0
    """Of the newest status that was told of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as readers see it."""

    run_id: str
    request_id: str
    state: RunState
    detail: str
    source: str
    repo_url: str
    repo_full_name: str | None
    commit_sha: str
    ref: str | None
    event: str | None
    change_number: int | None
    sender: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    rerun_of: str | None
    source_name: str | None = None
    """The hook that it came through."""
    not_before: float | None = None
    """When it was to start at the earliest, if that was asked for."""
    delivery_id: str | None = None
    """The forge's id of the delivery that asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of runs, newest first; `next` is the cursor of the following page, None on the last."""

    runs: Sequence[RunView]
    next: str | None


class RunFilters(TypedDict, total=False):
    """What runs are asked for; what is None or left out is not asked. All of it together has to hold."""

    repository: str | None
    """Its full name, or its URL if it has no name."""
    ref: str | None
    """`refs/heads/main`"""
    state: RunState | None
    label: str | None
    """A job of it runs on that,"""
    priority: Priority | None
    """and is of that class."""


class JobFilters(TypedDict, total=False):
    """What jobs are asked for, as `RunFilters`."""

    repository: str | None
    ref: str | None
    state: JobState | None
    label: str | None
    priority: Priority | None


class ChunkKind(StrEnum):
    """Who wrote a piece of a log: the job, or the orchestrator."""

    OUTPUT = "output"
    MARK = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a job's log; `sequence` counts from 1 within its attempt, without gaps."""

    sequence: int
    at: float
    data: bytes
    kind: ChunkKind = ChunkKind.OUTPUT


class LogState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Chunks after the asked-for sequence; CLOSED once the attempt is over and this page holds its last chunk."""

    attempt: int
    chunks: Sequence[LogChunk]
    state: LogState


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where in a log a byte is."""

    total: int
    """Bytes of the log so far."""
    start: int
    """The byte's offset from the beginning; not below `total` when the log is not so long."""
    sequence: int
    """Of the chunk that it is in; 1 when there is none."""
    begins: int
    """Offset of that chunk."""
