"""Rows of the store to values and back. Pure."""

import hashlib
import json
import sqlite3
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import orjson

from solstice_common.messages import JobRequestV1, Priority, format_timestamp
from solstice_orchestrator.jobs import JobSpec, JobState, Reason, RunState, StepSpec
from solstice_orchestrator.scheduling import PRIORITY_ORDER
from solstice_orchestrator.store.protocol import AttemptView, JobView, RunView

REQUEST: Final = "(SELECT body FROM requests WHERE requests.age = runs.age) AS request"
"""A column of every statement about `runs` whose rows are to tell of the request."""


def timestamp(at: float) -> str:
    """Seconds since the epoch as messages write them."""
    return format_timestamp(datetime.fromtimestamp(at, UTC))


def key(text: str) -> bytes:
    """What stands for a request id or an idempotency key in the unique indexes: 16 bytes, however long it is."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def request_fields(body: bytes) -> dict[str, Any]:
    """A stored request as plain JSON; it was validated when it was admitted."""
    try:
        fields: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError:
        # An integer beyond every float in a field we do not know: the slow way reads it.
        fields = json.loads(body)
    return fields


def request_of(body: bytes) -> JobRequestV1:
    return JobRequestV1.decode(body)


def encode_spec(spec: JobSpec) -> bytes:
    """A job's spec as JSON, for the store alone."""
    steps = [
        {"name": step.name, "run": step.run, "env": dict(step.env), "timeout_seconds": step.timeout_seconds}
        for step in spec.steps
    ]
    return orjson.dumps(
        {
            "name": spec.name,
            "runs_on": spec.runs_on,
            "steps": steps,
            "needs": spec.needs,
            "env": dict(spec.env),
            "timeout_seconds": spec.timeout_seconds,
            "priority": spec.priority.value,
        }
    )


def decode_spec(text: bytes) -> JobSpec:
    """What `encode_spec` wrote."""
    fields = orjson.loads(text)
    steps = tuple(
        StepSpec(
            name=step["name"],
            run=step["run"],
            env=MappingProxyType(step["env"]),
            timeout_seconds=step["timeout_seconds"],
        )
        for step in fields["steps"]
    )
    return JobSpec(
        name=fields["name"],
        runs_on=fields["runs_on"],
        steps=steps,
        needs=tuple(fields["needs"]),
        env=MappingProxyType(fields["env"]),
        timeout_seconds=fields["timeout_seconds"],
        priority=Priority(fields["priority"]),
    )


def run_view(row: sqlite3.Row) -> RunView:
    request = request_fields(row["request"])
    return RunView(
        run_id=row["run_id"],
        request_id=request["request_id"],
        state=RunState(row["state"]),
        detail=row["detail"],
        source=request["source"],
        repo_url=request["repo_url"],
        repo_full_name=request.get("repo_full_name"),
        commit_sha=request["commit_sha"],
        ref=request.get("ref"),
        event=request.get("event"),
        change_number=request.get("change_number"),
        sender=request.get("sender"),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        rerun_of=row["rerun_of"],
    )


def job_view(row: sqlite3.Row) -> JobView:
    return JobView(
        job_id=row["job_id"],
        run_id=row["run_id"],
        name=row["name"],
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        detail=row["detail"],
        runs_on=row["runs_on"],
        needs=tuple(json.loads(row["needs"])),
        priority=PRIORITY_ORDER[row["priority"]],
        attempt=row["attempt"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        retry_at=row["retry_at"],
        exit_code=row["exit_code"],
        step=row["step"],
        worker_id=row["worker_id"],
    )


def attempt_view(row: sqlite3.Row) -> AttemptView:
    return AttemptView(
        number=row["number"],
        worker_id=row["worker_id"],
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        exit_code=row["exit_code"],
        step=row["step"],
        detail=row["detail"],
    )
