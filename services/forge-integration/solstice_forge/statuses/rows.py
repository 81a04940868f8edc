"""Converts rows of statuses to values and back, the same for every database. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from solstice_forge.statuses.protocol import ContextStatus, OutgoingStatus, ReportPhase, StatusDeadLetter
from solstice_forge.statuses.reportable_status import ReportableStatus


def columns_of(status: ReportableStatus, now: float) -> dict[str, Any]:
    """Return the stored columns of a status that arrived, with `place` and `now`."""
    return {
        "source_name": status.source_name,
        "repository": status.repository,
        "commit_sha": status.commit_sha,
        "context": status.context,
        "run_id": status.run_id,
        "sequence": status.sequence,
        "revision": status.revision,
        "state": status.state,
        "final": status.final,
        "request_id": status.request_id,
        "body": status.body,
        "now": now,
        "place": status.place,
    }


def dead_letter_of(row: Mapping[str, Any]) -> StatusDeadLetter:
    """Return the row of a status that its forge did not take."""
    return StatusDeadLetter(
        row_id=row["row_id"],
        request_id=row["request_id"],
        body=bytes(row["body"]),
        headers=json.loads(row["headers"]),
    )


def context_status_of(row: Mapping[str, Any]) -> ContextStatus:
    """Return a row as a value for people."""
    return ContextStatus(
        source_name=row["source_name"],
        repository=row["repository"],
        commit_sha=row["commit_sha"],
        context=row["context"],
        run_id=row["run_id"],
        state=row["state"],
        phase=ReportPhase(row["phase"]),
        reported_state=row["reported_state"],
        reported_at=row["reported_at"],
        failures=row["failures"],
        last_failure=row["last_failure"],
        next_at=row["next_at"],
    )


def outgoing_status_of(row: Mapping[str, Any], place: str, now: float) -> OutgoingStatus:
    """Return a row's newest status as it is sent."""
    return OutgoingStatus(
        row_id=row["row_id"],
        repository=row["repository"],
        place=place,
        run_id=row["run_id"],
        state=row["state"],
        final=bool(row["final"]),
        request_id=row["request_id"],
        stored_at=row["stored_at"],
        body=bytes(row["body"]),
        failures=row["failures"],
        failing_since=row["failing_since"],
        since=now,
        calls=row["calls"],
        check_id=row["check_id"] if row["check_run_id"] == row["run_id"] else None,
    )
