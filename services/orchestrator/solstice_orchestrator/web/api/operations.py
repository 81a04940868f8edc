"""The operations of API v1, with the docstrings of their handlers as texts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from solstice_orchestrator.web.api.artifact_routes import TAR, ArtifactsApi
from solstice_orchestrator.web.api.cache_routes import CachesApi
from solstice_orchestrator.web.api.dead_letter_routes import DeadLettersApi
from solstice_orchestrator.web.api.logs import LogApi
from solstice_orchestrator.web.api.report_routes import ReportsApi
from solstice_orchestrator.web.api.runs import RunsApi
from solstice_orchestrator.web.api.scale import ScaleApi
from solstice_orchestrator.web.api.schedule_requests import ScheduleEdit, ScheduleInput
from solstice_orchestrator.web.api.schedules import SchedulesApi
from solstice_orchestrator.web.api.watermark_routes import WatermarksApi
from solstice_orchestrator.web.api.why import ExplanationsApi, WhyApi
from solstice_orchestrator.web.api.worker_routes import WorkersApi
from solstice_orchestrator.web.formats import api_models, query_parameters, report_models
from solstice_orchestrator.web.formats.api_models import Model

EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
ORDERS: Final = ("pause", "resume", "drain", "quarantine")
ACTIONS: Final = ("pause", "resume", "fire", "remove")
HANDLINGS: Final = ("replay", "drop")
CHOICES: Final = {"order": ORDERS, "action": ACTIONS, "handling": HANDLINGS}
"""The path parameters that the caller chooses, with their values."""
TAKEN: Final = "The name is taken: `name_taken`."
GAPS: Final = (
    "Server-sent events: `chunk` (its id is where to go on: `Last-Event-ID`), `gap` before a chunk when those between "
    "`first` and `last` were never stored, `attempt` when a new one begins, and one `end`, the last."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    `gives` is a model, or a media type for an answer that is no JSON.
    """

    name: str
    """The `operationId`. Programs that are made from the document call operations by it: it stays."""
    path: str
    """The path below `/api/v1`."""
    serves: Callable[..., Any]
    gives: Model | str
    query: type[BaseModel] | None = None
    status: int = 200
    changes: bool = False
    """Whether it is a POST, and needs `operate`."""
    description: str = "As it comes."
    """The description of an answer that is no JSON."""
    conflict: str | None = None
    """The meaning of a 409."""
    parts: bool = False
    """Whether `Range` is supported."""
    body: type[BaseModel] | None = None
    """The model of the request's JSON."""

    @property
    def names(self) -> Sequence[str]:
        """The parameters of its path."""
        return re.findall(r"{(\w+)}", self.path)


OPERATIONS: Final = (
    Operation(
        name="api_runs",
        path="/runs",
        serves=RunsApi.runs,
        gives=api_models.RunPage,
        query=query_parameters.RunsQuery,
    ),
    Operation(
        name="api_run_counts",
        path="/run-counts",
        serves=RunsApi.run_counts,
        gives=api_models.RunCounts,
        query=query_parameters.RunCountsQuery,
    ),
    Operation(name="api_run", path="/runs/{run_id}", serves=RunsApi.run, gives=api_models.WholeRun),
    Operation(
        name="api_run_events",
        path="/runs/{run_id}/events",
        serves=RunsApi.run_events,
        gives=EVENTS,
        description="Server-sent events: `run` with how it is now, and again at every change, up to its end.",
    ),
    Operation(name="whyapi_run", path="/runs/{run_id}/why", serves=WhyApi.run, gives=api_models.WhyRun),
    Operation(
        name="api_cancel_run",
        path="/runs/{run_id}/cancel",
        serves=RunsApi.cancel_run,
        gives=api_models.WholeRun,
        status=202,
        changes=True,
    ),
    Operation(
        name="api_approve_run",
        path="/runs/{run_id}/approve",
        serves=RunsApi.approve_run,
        gives=api_models.WholeRun,
        changes=True,
    ),
    Operation(
        name="api_rerun",
        path="/runs/{run_id}/rerun",
        serves=RunsApi.rerun,
        gives=api_models.WholeRun,
        query=query_parameters.RerunQuery,
        status=201,
        changes=True,
        conflict="Only what failed was wanted, and the run has `not_ended`, or `nothing_failed`.",
    ),
    Operation(
        name="api_request", path="/requests/{request_id}", serves=RunsApi.request, gives=api_models.WholeRun
    ),
    Operation(
        name="api_jobs",
        path="/jobs",
        serves=RunsApi.jobs,
        gives=api_models.Jobs,
        query=query_parameters.JobsQuery,
    ),
    Operation(name="api_job", path="/jobs/{job_id}", serves=RunsApi.job, gives=api_models.WholeJob),
    Operation(
        name="api_attempts",
        path="/jobs/{job_id}/attempts",
        serves=RunsApi.attempts,
        gives=api_models.Attempts,
    ),
    Operation(
        name="logapi_log",
        path="/jobs/{job_id}/log",
        serves=LogApi.log,
        gives=api_models.LogPart,
        query=query_parameters.LogQuery,
    ),
    Operation(
        name="logapi_text",
        path="/jobs/{job_id}/log.txt",
        serves=LogApi.text,
        gives=TEXT,
        query=query_parameters.PlainLogQuery,
        parts=True,
    ),
    Operation(
        name="logapi_events",
        path="/jobs/{job_id}/log/events",
        serves=LogApi.events,
        gives=EVENTS,
        query=query_parameters.LogStreamQuery,
        description=GAPS,
    ),
    Operation(
        name="artifactsapi_artifacts",
        path="/runs/{run_id}/artifacts",
        serves=ArtifactsApi.artifacts,
        gives=api_models.Artifacts,
    ),
    Operation(
        name="artifactsapi_artifact",
        path="/jobs/{job_id}/artifacts/{artifact}",
        serves=ArtifactsApi.artifact,
        gives=TAR,
        parts=True,
    ),
    Operation(
        name="cachesapi_caches",
        path="/caches",
        serves=CachesApi.caches,
        gives=api_models.Caches,
        query=query_parameters.CachesQuery,
    ),
    Operation(
        name="cachesapi_cache", path="/caches/{cache}", serves=CachesApi.cache, gives=api_models.CacheModel
    ),
    Operation(
        name="cachesapi_drop",
        path="/caches/{cache}/drop",
        serves=CachesApi.drop,
        gives=api_models.CacheModel,
        changes=True,
    ),
    Operation(
        name="reportsapi_run",
        path="/runs/{run_id}/tests",
        serves=ReportsApi.run,
        gives=report_models.TestReports,
    ),
    Operation(
        name="reportsapi_job",
        path="/jobs/{job_id}/tests",
        serves=ReportsApi.job,
        gives=report_models.TestReports,
    ),
    Operation(
        name="reportsapi_flaky",
        path="/tests/flaky",
        serves=ReportsApi.flaky,
        gives=report_models.FlakyTests,
        query=query_parameters.RepositoryTestsQuery,
    ),
    Operation(
        name="reportsapi_history",
        path="/tests/history",
        serves=ReportsApi.history,
        gives=report_models.TestHistory,
        query=query_parameters.OneTestQuery,
    ),
    Operation(
        name="explanationsapi_run",
        path="/runs/{run_id}/explain",
        serves=ExplanationsApi.run,
        gives=report_models.Explanation,
    ),
    Operation(
        name="explanationsapi_job",
        path="/jobs/{job_id}/explain",
        serves=ExplanationsApi.job,
        gives=report_models.Explanation,
    ),
    Operation(name="whyapi_job", path="/jobs/{job_id}/why", serves=WhyApi.job, gives=api_models.WhyJob),
    Operation(
        name="api_cancel_job",
        path="/jobs/{job_id}/cancel",
        serves=RunsApi.cancel_job,
        gives=api_models.JobModel,
        status=202,
        changes=True,
    ),
    Operation(
        name="api_prioritise",
        path="/jobs/{job_id}/priority",
        serves=RunsApi.prioritise,
        gives=api_models.JobModel,
        query=query_parameters.PriorityQuery,
        changes=True,
        conflict="The job `has_ended`.",
    ),
    Operation(
        name="api_rerun_job",
        path="/jobs/{job_id}/rerun",
        serves=RunsApi.rerun_job,
        gives=api_models.WholeRun,
        status=201,
        changes=True,
        conflict="The job's run has `not_ended`.",
    ),
    Operation(
        name="api_events",
        path="/events",
        serves=RunsApi.events,
        gives=EVENTS,
        description="Server-sent events: `changed` whenever the newest runs did.",
    ),
    Operation(
        name="scaleapi_scale",
        path="/scale",
        serves=ScaleApi.scale,
        gives=api_models.Scale,
        query=query_parameters.ScaleQuery,
    ),
    Operation(
        name="watermarksapi_watermarks",
        path="/watermarks",
        serves=WatermarksApi.watermarks,
        gives=api_models.Watermarks,
        query=query_parameters.WatermarksQuery,
    ),
    Operation(
        name="workersapi_workers", path="/workers", serves=WorkersApi.workers, gives=api_models.Workers
    ),
    Operation(
        name="workersapi_events",
        path="/workers/events",
        serves=WorkersApi.events,
        gives=EVENTS,
        description="Server-sent events: `changed` whenever the workers did.",
    ),
    Operation(
        name="workersapi_worker",
        path="/workers/{worker_id}",
        serves=WorkersApi.worker,
        gives=api_models.Worker,
    ),
    Operation(
        name="workersapi_steer",
        path="/workers/{worker_id}/{order}",
        serves=WorkersApi.steer,
        gives=api_models.Worker,
        query=query_parameters.OrderQuery,
        status=202,
        changes=True,
        conflict="The worker `is_draining`, or `is_gone`.",
    ),
    Operation(
        name="schedulesapi_schedules",
        path="/schedules",
        serves=SchedulesApi.schedules,
        gives=api_models.Schedules,
        query=query_parameters.SchedulesQuery,
    ),
    Operation(
        name="schedulesapi_add",
        path="/schedules",
        serves=SchedulesApi.add,
        gives=api_models.ScheduleModel,
        status=201,
        changes=True,
        body=ScheduleInput,
        conflict=TAKEN,
    ),
    Operation(
        name="schedulesapi_events",
        path="/schedules/events",
        serves=SchedulesApi.events,
        gives=EVENTS,
        description="Server-sent events: `changed` whenever the schedules did, or what became of their ticks.",
    ),
    Operation(
        name="schedulesapi_schedule",
        path="/schedules/{schedule}",
        serves=SchedulesApi.schedule,
        gives=api_models.WholeSchedule,
    ),
    Operation(
        name="schedulesapi_edit",
        path="/schedules/{schedule}",
        serves=SchedulesApi.edit,
        gives=api_models.ScheduleModel,
        changes=True,
        body=ScheduleEdit,
        conflict=TAKEN,
    ),
    Operation(
        name="schedulesapi_next",
        path="/schedules/{schedule}/next",
        serves=SchedulesApi.next,
        gives=api_models.NextTicks,
        query=query_parameters.NextQuery,
    ),
    Operation(
        name="schedulesapi_steer",
        path="/schedules/{schedule}/{action}",
        serves=SchedulesApi.steer,
        gives=api_models.ScheduleModel,
        status=202,
        changes=True,
    ),
    Operation(
        name="deadlettersapi_dead_letters",
        path="/dead-letters",
        serves=DeadLettersApi.dead_letters,
        gives=api_models.DeadLetters,
        query=query_parameters.DeadLettersQuery,
    ),
    Operation(
        name="deadlettersapi_dead_letter",
        path="/dead-letters/{dead_letter}",
        serves=DeadLettersApi.dead_letter,
        gives=api_models.WholeDeadLetter,
    ),
    Operation(
        name="deadlettersapi_handle",
        path="/dead-letters/{dead_letter}/{handling}",
        serves=DeadLettersApi.handle,
        gives=api_models.DeadLetterSummary,
        status=202,
        changes=True,
        conflict="A replay would have no effect: `not_replayable`.",
    ),
)

LINKS: Final[Mapping[Model, Mapping[str, str]]] = {
    api_models.RunPage: {"run_id": "/runs/0/run_id"},
    api_models.WholeRun: {"run_id": "/run_id", "job_id": "/jobs/0/job_id", "request_id": "/request_id"},
    api_models.Jobs: {"run_id": "/jobs/0/run_id", "job_id": "/jobs/0/job_id"},
    api_models.WholeJob: {"run_id": "/run_id", "job_id": "/job_id"},
    api_models.JobModel: {"run_id": "/run_id", "job_id": "/job_id"},
    api_models.Artifacts: {
        "run_id": "/artifacts/0/run_id",
        "job_id": "/artifacts/0/job_id",
        "artifact": "/artifacts/0/name",
    },
    api_models.Caches: {"cache": "/caches/0/cache_id"},
    report_models.TestReports: {"run_id": "/reports/0/run_id", "job_id": "/reports/0/job_id"},
    api_models.Watermarks: {"run_id": "/watermarks/0/handled/run_id"},
    api_models.Workers: {"worker_id": "/workers/0/worker_id"},
    api_models.Worker: {"worker_id": "/worker_id"},
    api_models.Schedules: {"schedule": "/schedules/0/schedule_id"},
    api_models.ScheduleModel: {"schedule": "/schedule_id"},
    api_models.WholeSchedule: {"schedule": "/name"},
}
"""Where in an answer the parameters of further operations are (JSON pointers)."""
