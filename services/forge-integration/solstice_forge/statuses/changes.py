"""Computes how the end of a call changes the row of its context. Pure.

(row, outgoing status, ending) -> new columns.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from solstice_common.broker.headers import (
    ATTEMPT_HEADER,
    DETAIL_CHARACTERS,
    DETAIL_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    REFUSED_AT_HEADER,
    REFUSED_BY_HEADER,
)
from solstice_common.topology import STATUSES
from solstice_common.values.times import format_timestamp
from solstice_forge.statuses.call_endings import CallEnding, Reported, RetryLater, Undeliverable
from solstice_forge.statuses.protocol import OutgoingStatus, ReportPhase
from solstice_forge.statuses.reportable_status import place

REFUSED_BY: Final = "forge-integration"
NOT_UNDER_WAY: Final[Mapping[str, Any]] = {"call_started_at": None, "call_place": ""}


def place_of(row: Mapping[str, Any]) -> str:
    """Return the place of a row's newest status."""
    return place(row["run_id"], row["sequence"], row["revision"])


def not_before(row: Mapping[str, Any], at: float) -> float:
    """Return when the row's newest status may go out, `at` or later.

    It waits while an older one may still reach the forge, which could then show the older one. The same status need not
    wait.
    """
    return at if row["unconfirmed_place"] in {"", place_of(row)} else max(at, row["unconfirmed_until"])


def after(
    row: Mapping[str, Any], outgoing: OutgoingStatus, ending: CallEnding, *, now: float, horizon: float
) -> dict[str, Any]:
    """Return the changed columns; `row` may hold a newer status than the one sent."""
    newest = place_of(row) == outgoing.place
    columns: dict[str, Any] = {**NOT_UNDER_WAY, "next_at": now}
    match ending:
        case Reported():
            columns |= _reported(row, outgoing, ending, now)
        case Undeliverable(detail=detail):
            columns |= {"last_failure": detail, "failures": 0, "failing_since": None}
        case RetryLater():
            columns |= _retried(row, outgoing, ending, now=now, horizon=horizon)
    if newest and not isinstance(ending, RetryLater):
        columns["phase"] = (
            ReportPhase.DEAD if isinstance(ending, Undeliverable) else ReportPhase.REPORTED
        ).value
    columns["next_at"] = not_before({**row, **columns}, columns["next_at"])
    return columns


def _reported(
    row: Mapping[str, Any], outgoing: OutgoingStatus, reported: Reported, now: float
) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "calls": row["calls"] + 1,
        "reported_at": now,
        "reported_state": outgoing.state,
        "failures": 0,
        "failing_since": None,
        "last_failure": "",
    }
    if reported.check_id is not None:
        columns |= {"check_id": reported.check_id, "check_run_id": outgoing.run_id}
    return columns


def _retried(
    row: Mapping[str, Any], outgoing: OutgoingStatus, retry: RetryLater, *, now: float, horizon: float
) -> dict[str, Any]:
    columns: dict[str, Any] = {"next_at": retry.at, "last_failure": retry.why}
    if retry.failed:
        since = row["failing_since"]
        columns |= {"failures": row["failures"] + 1, "failing_since": now if since is None else since}
    if retry.perhaps_done:
        columns |= {
            "calls": row["calls"] + 1,
            "unconfirmed_place": outgoing.place,
            # Counted from its end as well: a machine that stalls may send long after the call began.
            "unconfirmed_until": max(row["unconfirmed_until"], outgoing.since + horizon, now + horizon / 2),
        }
    return columns


def orphaned(row: Mapping[str, Any], now: float, horizon: float) -> dict[str, Any]:
    """Return the changed columns after the process with a call under way died."""
    columns: dict[str, Any] = {
        **NOT_UNDER_WAY,
        "calls": row["calls"] + 1,
        "unconfirmed_place": row["call_place"],
        "unconfirmed_until": max(row["unconfirmed_until"], now + horizon),
    }
    columns["next_at"] = not_before({**row, **columns}, row["next_at"])
    return columns


def is_under_way(row: Mapping[str, Any], outgoing: OutgoingStatus) -> bool:
    """Whether the row still waits for the end of this call.

    Otherwise another process has taken over.
    """
    return bool(row["call_started_at"] == outgoing.since and row["call_place"] == outgoing.place)


def dead_letter_headers(
    outgoing: OutgoingStatus, undeliverable: Undeliverable, now: float
) -> dict[str, str | int]:
    """Return the headers of a dead letter, named as in other dead letters."""
    return {
        REASON_HEADER: undeliverable.reason,
        DETAIL_HEADER: undeliverable.detail[:DETAIL_CHARACTERS],
        QUEUE_HEADER: STATUSES.queue,
        REFUSED_AT_HEADER: format_timestamp(datetime.fromtimestamp(now, UTC)),
        REFUSED_BY_HEADER: REFUSED_BY,
        ATTEMPT_HEADER: outgoing.failures + 1,
    }
