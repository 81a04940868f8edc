"""Releases jobs that waited for approval. Pure."""

import json
from typing import Any

from solstice_common.messages import stored_request
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.decisions.supersede import group_digest
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.rows import decode_concurrency
from solstice_orchestrator.superseding.groups import GroupScope


def approve_run(unit: UnitOfWork, run_id: str) -> None:
    """Release the run's jobs that wait for approval; other runs stay unchanged."""
    waiting = [job for job in unit.jobs_of(run_id) if job.state is JobState.APPROVAL]
    if not waiting:
        return
    run = unit.runs[run_id]
    unit.change_run(run_id, **_begun(unit, run, waiting[0]))
    for job in waiting:
        held_up = job.needs != "[]" or job.group_key is not None or run.concurrency is not None
        unit.move(job, JobState.BLOCKED if held_up else JobState.WAITING, Reason.APPROVED)
    unit.settle([run_id])


def _begun(unit: UnitOfWork, run: Run, job: Job) -> dict[str, Any]:
    """Return what approval gives the run: its time limit, and the group it asks for."""
    columns: dict[str, Any] = {}
    if run.timeout_at is not None:
        columns["timeout_at"] = run.timeout_at + unit.now - job.created_at
    if run.concurrency is not None:
        concurrency = decode_concurrency(json.loads(run.concurrency))
        columns["group_key"] = group_digest(
            unit.moment.rules, GroupScope.RUN, concurrency, stored_request(run.request)
        )
    return columns
