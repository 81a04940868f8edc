"""The answers of API v1 as models for its OpenAPI document. Pure.

They have a view's fields as `views` shows them.
"""

from dataclasses import fields
from typing import Annotated, Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from solstice_common.messages import Priority
from solstice_common.messages.fields import Timestamp
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.queue_times.demand import Demand
from solstice_orchestrator.queue_times.waits import Holder, WaitExplanation
from solstice_orchestrator.scheduling.workers import WorkerJob, WorkerView
from solstice_orchestrator.store.artifact_records import ArtifactView
from solstice_orchestrator.store.schedule_store import ScheduleView, TickView
from solstice_orchestrator.store.views import (
    AttemptView,
    ChunkKind,
    JobView,
    LogState,
    RunView,
    WatermarkView,
)
from solstice_orchestrator.worker.caches.cache_entries import CacheView

Model = type[BaseModel]

_TIMES: Final = ("since", "until", "not_before")


class _Answer(BaseModel):
    """A newer orchestrator may add fields."""

    model_config = ConfigDict(extra="allow")


class Described(_Answer):
    """An answer that is written as a class: pydantic reads its docstrings in the source.

    The models that are made from views have none, and searching for their source takes half a second.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)


def _of_view(name: str, view: type, description: str, /, **others: Any) -> Model:
    """Return the model of a view.

    `others` are fields that are shown in another form.
    """
    hints = get_type_hints(view)
    kinds = {field.name: _shown(field.name, hints[field.name]) for field in fields(view)} | others
    columns: dict[str, Any] = {field: (kind, ...) for field, kind in kinds.items()}
    return create_model(name, __base__=_Answer, __doc__=description, **columns)


def _shown(name: str, kind: Any) -> Any:
    """Return the type in JSON: times are RFC 3339 there, and seconds inside."""
    if name.endswith(("_at", "_until")) or name in _TIMES:
        return Timestamp if kind is float else Timestamp | None
    return kind


def _many(model: Model) -> Any:
    return list[model]  # type: ignore[valid-type]  # `model` is a value here; a type checker takes only names of types


def _with(name: str, base: Model, description: str, /, **more: Any) -> Model:
    columns: dict[str, Any] = {field: (kind, ...) for field, kind in more.items()}
    return create_model(name, __base__=base, __doc__=description, **columns)


RunModel: Final = _of_view("Run", RunView, "A request, and what became of it.")
JobModel: Final = _of_view("Job", JobView, "One job of a run.", needs=list[str])
AttemptModel: Final = _of_view("Attempt", AttemptView, "One try at a job.")
WatermarkModel: Final = _of_view(
    "Watermark",
    WatermarkView,
    "How far the pushes of a ref are handled.",
    handled=RunModel | None,
    pushes=_many(RunModel),
)
Watermarks: Final = _with(
    "Watermarks",
    _Answer,
    "One page of watermarks, by repository and ref.",
    watermarks=_many(WatermarkModel),
    next=str | None,
)
ArtifactModel: Final = _of_view("Artifact", ArtifactView, "Files that a job handed out, as one archive.")
Artifacts: Final = _with(
    "Artifacts", _Answer, "The artifacts of a run, by jobs and names.", artifacts=_many(ArtifactModel)
)
CacheModel: Final = _of_view("Cache", CacheView, "Files that a job saved for later ones.")
Caches: Final = _with(
    "Caches",
    _Answer,
    "The caches that fit, the last used first; `count` and `bytes` are those of all that fit.",
    caches=_many(CacheModel),
    count=int,
    bytes=int,
)
RunPage: Final = _with(
    "RunPage",
    _Answer,
    "One page of runs, newest first.",
    runs=_many(RunModel),
    next=str | None,
)
RunCounts: Final = _with(
    "RunCounts",
    _Answer,
    "How many runs are in each final state, and how many have not ended.",
    counts=dict[str, int],
    unfinished=int,
)
WholeRun: Final = _with("WholeRun", RunModel, "A run with its jobs.", jobs=_many(JobModel))
Jobs: Final = _with("Jobs", _Answer, "One page of jobs.", jobs=_many(JobModel), next=str | None)
WholeJob: Final = _with(
    "WholeJob",
    JobModel,
    "A job with its attempts, and with what it hands out.",
    attempts=_many(AttemptModel),
    artifacts=_many(ArtifactModel),
    outputs=dict[str, str],
)


Attempts: Final = _with(
    "Attempts", _Answer, "Every try at a job, oldest first.", attempts=_many(AttemptModel)
)


class Missing(Described):
    """Chunks that were never stored, or were removed; both ends are included."""

    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]


class Chunk(Described):
    """A piece of a log."""

    sequence: Annotated[int, Field(ge=1)]
    at: Timestamp
    kind: ChunkKind
    """`mark`: a line that the orchestrator wrote, never the job."""
    text: str


class LogPart(Described):
    """A part of an attempt's log."""

    attempt: Annotated[int, Field(ge=0)]
    state: LogState
    """`closed` once the attempt has ended and nothing follows this part."""
    chunks: list[Chunk]
    missing: list[Missing]
    """The missing chunks between the requested sequence and the last of these chunks."""


class ExpectedStart(Described):
    """When a job may start, if no more urgent job comes."""

    earliest: Timestamp
    latest: Timestamp


WaitHolder: Final = _of_view("Holder", Holder, "Who has what is waited for, or goes before.")
WhyWaiting: Final = _of_view(
    "Why",
    WaitExplanation,
    "Why something waits.",
    holders=_many(WaitHolder),
    expected_start=ExpectedStart | None,
)
WhyJob: Final = _with(
    "WhyJob",
    _Answer,
    "Why a job waits; null when it runs or has ended.",
    job_id=str,
    run_id=str,
    name=str,
    state=JobState,
    why=WhyWaiting | None,
)
WhyRun: Final = _with(
    "WhyRun",
    _Answer,
    "Why a run has no jobs yet; null when it has.",
    run_id=str,
    state=RunState,
    why=WhyWaiting | None,
)
WorkerJobModel: Final = _of_view("HeldJob", WorkerJob, "A job that a worker runs.")
Worker: Final = _of_view(
    "Worker", WorkerView, "Who runs jobs.", slots=dict[str, int], jobs=_many(WorkerJobModel)
)
Workers: Final = _with("Workers", _Answer, "Every worker, by name.", workers=_many(Worker))


class HeldBack(Described):
    """Jobs that more slots would not help."""

    blocked: int
    """Jobs that wait for their needs, or for their concurrency group."""
    approval: int
    backoff: int
    repository_cap: int
    owner_cap: int
    rate_limited: int
    """Jobs beyond those that a rate lets start within the target."""


LabelDemand: Final = _of_view("LabelDemand", Demand, "The work for one label.", held_back=HeldBack)
Scale: Final = _with(
    "Scale",
    _of_view("AllDemand", Demand, "The work for all labels that were asked about.", held_back=HeldBack),
    "How much there is to do: for all labels that were asked about together, and for each.",
    at=Timestamp,
    target_seconds=float,
    labels=dict[str, LabelDemand],  # type: ignore[valid-type]  # as in `_many`
)


TickModel: Final = _of_view(
    "Tick", TickView, "What became of a tick, or of several in a row that were missed."
)
ScheduleModel: Final = _of_view("Schedule", ScheduleView, "What is built regularly.", last=TickModel | None)
Schedules: Final = _with(
    "Schedules", _Answer, "One page of schedules.", schedules=_many(ScheduleModel), next=str | None
)
WholeSchedule: Final = _with(
    "WholeSchedule", ScheduleModel, "A schedule with its newest ticks.", ticks=_many(TickModel)
)


class NextTick(Described):
    """One tick."""

    at: Timestamp
    local: str
    """The same moment in the local time of its zone."""


class NextTicks(Described):
    """When the next ticks of a schedule are due."""

    schedule_id: str
    timezone: str
    ticks: list[NextTick]


class DeadLetterSummary(Described):
    """A message that was refused or given up, in short."""

    id: str
    """Equal for copies of the message; it does not change while it is dead."""
    queue: str
    reason: str
    detail: str
    dead_since: Timestamp | None
    repository: str | None
    priority: Priority | None
    request_id: str | None
    run_id: str | None
    """The run that failed; a replay would be a duplicate."""
    type: str | None
    attempt: int
    bytes: int


class WholeDeadLetter(DeadLetterSummary):
    """A dead letter with its history, headers and body."""

    refused_by: str | None
    history: list[str]
    message_id: str | None
    content_type: str | None
    headers: dict[str, Any]
    body: str
    """As text; bytes that are not UTF-8 are escaped. Of a body above 512 KiB its beginning."""
    body_omitted_bytes: int
    """How many bytes of the body follow."""


class DeadLetterCounts(Described):
    """How many match, on all pages."""

    total: int
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_priority: dict[str, int]
    by_age: dict[str, int]


class DeadLetters(Described):
    """Dead letters, the oldest first, with their counts."""

    dead_letters: list[DeadLetterSummary]
    counts: DeadLetterCounts
    next: str | None
    """Where the next page begins; null on the last one."""


class Fault(Described):
    """The error of a refused request."""

    code: str
    """One word for programs."""
    message: str
    """A sentence for people."""


class Problem(Described):
    """The answer to a refused request."""

    error: Fault


MODELS: Final[tuple[Model, ...]] = (
    RunPage,
    WholeRun,
    Jobs,
    WholeJob,
    RunCounts,
    Attempts,
    LogPart,
    Artifacts,
    Caches,
    CacheModel,
    WhyJob,
    WhyRun,
    Workers,
    Worker,
    Scale,
    Watermarks,
    Schedules,
    ScheduleModel,
    WholeSchedule,
    NextTicks,
    DeadLetters,
    DeadLetterSummary,
    WholeDeadLetter,
    Problem,
)
