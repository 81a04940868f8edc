"""The views of runs, jobs, attempts and logs for readers of the job store."""

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
    image: str = ""
    """Of its container, with the digest that ran; empty when it had none, and while it runs."""
    provisioning_seconds: float | None = None
    """How long it took until its container or VM was ready; None: it had none, or is not ready yet."""


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
    """How often the job was claimed; 0 before the first claim."""
    created_at: float
    started_at: float | None
    finished_at: float | None
    retry_at: float | None
    exit_code: int | None
    step: str | None
    worker_id: str | None
    retries: int = 0
    """How many failures of the job itself its author allows to retry."""
    retried: int = 0
    """How much of that budget is spent."""
    sequence: int = 0
    """Sequence of the job's newest status."""


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
    """The source that the request came through."""
    not_before: float | None = None
    """The earliest start, if the request named one."""
    delivery_id: str | None = None
    """The forge's id of the delivery that made the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of runs, newest first.

    `next` is the cursor of the following page, None on the last.
    """

    runs: Sequence[RunView]
    next: str | None


class RunFilters(TypedDict, total=False):
    """Which runs to list; a run must match every filter that is not None."""

    repository: str | None
    """The repository's full name, or its URL if it has no name."""
    ref: str | None
    """`refs/heads/main`"""
    state: RunState | None
    label: str | None
    """The run has a job with this label,"""
    priority: Priority | None
    """and with this priority class."""


class JobFilters(TypedDict, total=False):
    """Which jobs to list, as in `RunFilters`."""

    repository: str | None
    ref: str | None
    state: JobState | None
    label: str | None
    priority: Priority | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkView:
    """How far the pushes of a ref are handled: up to its watermark.

    A push is a run with a ref that is neither of a change request nor a rerun. It is handled when it has ended, in
    any state, and pending before that, from the moment when it may start.
    """

    repository: str
    """The repository's full name, or its URL if it has no name."""
    ref: str
    handled: RunView | None
    """The watermark: the newest push that is handled; None when none is."""
    pending: int
    """How many pending pushes came after the watermark. Older pending ones are overtaken, and do not count."""
    pushes: tuple[RunView, ...]
    """The first of them, the oldest first."""
    lag_seconds: float
    """For how long the first of them is pending; 0 without any."""


class ChunkKind(StrEnum):
    """The writer of a log chunk: the job, or the orchestrator."""

    OUTPUT = "output"
    MARK = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A chunk of a job's log; `sequence` counts from 1 within its attempt, without gaps."""

    sequence: int
    at: float
    data: bytes
    kind: ChunkKind = ChunkKind.OUTPUT


class LogState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Log chunks after the requested sequence.

    CLOSED once the attempt is over and this page holds its last chunk.
    """

    attempt: int
    chunks: Sequence[LogChunk]
    state: LogState


@dataclass(frozen=True, slots=True, kw_only=True)
class LogByte:
    """The position of a byte in a log."""

    total: int
    """Size of the log so far, in bytes."""
    start: int
    """The byte's offset from the beginning; `total` or more when the log is shorter."""
    sequence: int
    """Of the chunk that contains the byte; 1 when there is none."""
    begins: int
    """Offset of that chunk."""
