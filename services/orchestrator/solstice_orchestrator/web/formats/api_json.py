"""Convert views to the JSON of API v1. Pure.

Fields keep their names, times are RFC 3339, and states are strings.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

from solstice_common.values.times import format_seconds
from solstice_orchestrator.queue_times.demand import Demand
from solstice_orchestrator.queue_times.waits import Holder, WaitExplanation
from solstice_orchestrator.scheduling.workers import WorkerJob, WorkerView
from solstice_orchestrator.store.artifact_records import ArtifactView
from solstice_orchestrator.store.schedule_store import ScheduleView, TickView
from solstice_orchestrator.store.views import AttemptView, JobView, LogChunk, RunView, WatermarkView
from solstice_orchestrator.web.formats.log_text import LogGap
from solstice_orchestrator.worker.caches.cache_entries import CacheView

Document = dict[str, Any]


def document(
    view: RunView
    | JobView
    | AttemptView
    | WorkerView
    | WorkerJob
    | Holder
    | Demand
    | ScheduleView
    | TickView
    | WatermarkView
    | ArtifactView
    | CacheView,
) -> Document:
    """Return one view as a JSON object."""
    return {field.name: _value(field.name, getattr(view, field.name)) for field in fields(view)}


def run_document(run: RunView, jobs: Iterable[JobView]) -> Document:
    """Return a run with its `jobs`."""
    return document(run) | {"jobs": [document(job) for job in jobs]}


def job_document(
    job: JobView,
    attempts: Iterable[AttemptView],
    artifacts: Iterable[ArtifactView],
    outputs: Mapping[str, str],
) -> Document:
    """Return a job with its `attempts`, and with what it hands out."""
    return document(job) | {
        "attempts": [document(attempt) for attempt in attempts],
        "artifacts": [document(artifact) for artifact in artifacts],
        "outputs": dict(outputs),
    }


def worker_document(worker: WorkerView) -> Document:
    """Return a worker with its running `jobs`, and `name` beside the id of its process."""
    return document(worker) | {"slots": dict(worker.slots), "jobs": [document(job) for job in worker.jobs]}


def schedule_document(schedule: ScheduleView) -> Document:
    """Return a schedule with its `last` tick."""
    return document(schedule) | {"last": None if schedule.last is None else tick_document(schedule.last)}


def tick_document(tick: TickView) -> Document:
    """Return a tick with its result."""
    return document(tick)


def watermark_document(watermark: WatermarkView) -> Document:
    """Return a watermark with the runs of its pushes."""
    return document(watermark) | {
        "handled": watermark.handled and document(watermark.handled),
        "pushes": [document(push) for push in watermark.pushes],
        "lag_seconds": round(watermark.lag_seconds, 3),
    }


def why_document(why: WaitExplanation) -> Document:
    """Why a job waits, with the `holders` that block it and its `expected_start`, if known."""
    start = why.expected_start
    return {
        "reason": why.reason.value,
        "detail": why.detail,
        "since": rfc3339(why.since),
        "ahead": why.ahead,
        "resource": why.resource,
        "until": None if why.until is None else rfc3339(why.until),
        "holders": [document(holder) for holder in why.holders],
        "expected_start": start and {"earliest": rfc3339(start.earliest), "latest": rfc3339(start.latest)},
    }


def scale_document(
    now: float, target_seconds: float, together: Demand, labels: Mapping[str, Demand]
) -> Document:
    """Return the demand of all `labels` together, and of each."""
    return {
        "at": rfc3339(now),
        "target_seconds": target_seconds,
        **demand_document(together),
        "labels": {label: demand_document(demand) for label, demand in labels.items()},
    }


def demand_document(demand: Demand) -> Document:
    """Return the demand as numbers for programs, with seconds to the millisecond."""
    fields = document(demand)
    seconds = {name: round(value, 3) for name, value in fields.items() if name.endswith("_seconds")}
    return fields | seconds | {"held_back": dict(demand.held_back)}


def chunk_document(chunk: LogChunk, text: str) -> Document:
    """A chunk of a log; `text` is its bytes decoded after those of earlier chunks."""
    return {"sequence": chunk.sequence, "at": rfc3339(chunk.at), "kind": chunk.kind.value, "text": text}


def gap_document(gap: LogGap) -> Document:
    """Return a range of missing chunks of a log."""
    return {"first": gap.first, "last": gap.last}


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch as `2026-01-31T12:00:00.000Z`."""
    return format_seconds(seconds)


def _value(name: str, value: object) -> object:
    match value:
        case Enum():
            return value.value
        case float() | int() if name.endswith(("_at", "_until")) or name == "not_before":
            return rfc3339(value)
        case Sequence() if not isinstance(value, str):
            return list(value)
        case _:
            return value
