"""What a call's end changes in the row of its context: (row, telling, ending) -> new columns. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from solstice_common.broker.headers import DETAIL_CHARACTERS
from solstice_common.times import format_timestamp
from solstice_common.topology import STATUSES
from solstice_forge.statuses.call_endings import Again, Dead, Ending, Told
from solstice_forge.statuses.protocol import Phase, Telling
from solstice_forge.statuses.wanted_status import place

REFUSED_BY: Final = "forge-integration"
NOT_UNDER_WAY: Final[Mapping[str, Any]] = {"flying_since": None, "flying": ""}


def place_of(row: Mapping[str, Any]) -> str:
    """The place of the newest status of a row."""
    return place(row["run_id"], row["sequence"], row["revision"])


def not_before(row: Mapping[str, Any], at: float) -> float:
    """The moment from which the row's newest status may go out, that would otherwise at `at`.

    As long as an older one may still reach the forge it waits: it could be overtaken. The same one need not.
    """
    return at if row["unsure"] in {"", place_of(row)} else max(at, row["unsure_until"])


def after(
    row: Mapping[str, Any], telling: Telling, ending: Ending, *, now: float, horizon: float
) -> dict[str, Any]:
    """The columns that change; `row` may hold a newer status than the one that was told."""
    newest = place_of(row) == telling.place
    columns: dict[str, Any] = {**NOT_UNDER_WAY, "next_at": now}
    match ending:
        case Told():
            columns |= _told(row, telling, ending, now)
        case Dead(detail=detail):
            columns |= {"last_failure": detail, "failures": 0, "failing_since": None}
        case Again():
            columns |= _again(row, telling, ending, now=now, horizon=horizon)
    if newest and not isinstance(ending, Again):
        columns["phase"] = (Phase.DEAD if isinstance(ending, Dead) else Phase.TOLD).value
    columns["next_at"] = not_before({**row, **columns}, columns["next_at"])
    return columns


def _told(row: Mapping[str, Any], telling: Telling, told: Told, now: float) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "calls": row["calls"] + 1,
        "told_at": now,
        "told_state": telling.state,
        "failures": 0,
        "failing_since": None,
        "last_failure": "",
    }
    if told.check_id is not None:
        columns |= {"check_id": told.check_id, "check_run_id": telling.run_id}
    return columns


def _again(
    row: Mapping[str, Any], telling: Telling, again: Again, *, now: float, horizon: float
) -> dict[str, Any]:
    columns: dict[str, Any] = {"next_at": again.at, "last_failure": again.why}
    if again.failed:
        since = row["failing_since"]
        columns |= {"failures": row["failures"] + 1, "failing_since": now if since is None else since}
    if again.unsure:
        columns |= {
            "calls": row["calls"] + 1,
            "unsure": telling.place,
            # From its end as well: a machine that stalls may send long after it began.
            "unsure_until": max(row["unsure_until"], telling.since + horizon, now + horizon / 2),
        }
    return columns


def orphaned(row: Mapping[str, Any], now: float, horizon: float) -> dict[str, Any]:
    """The columns that change when whoever had a call under way has died."""
    columns: dict[str, Any] = {
        **NOT_UNDER_WAY,
        "calls": row["calls"] + 1,
        "unsure": row["flying"],
        "unsure_until": max(row["unsure_until"], now + horizon),
    }
    columns["next_at"] = not_before({**row, **columns}, row["next_at"])
    return columns


def is_under_way(row: Mapping[str, Any], telling: Telling) -> bool:
    """Whether the row still waits for the end of this call; otherwise another process has taken over."""
    return bool(row["flying_since"] == telling.since and row["flying"] == telling.place)


def letter_headers(telling: Telling, dead: Dead, now: float) -> dict[str, str | int]:
    """What the dead letter says of itself, like every dead letter of ours."""
    return {
        "x-solstice-reason": dead.reason,
        "x-solstice-detail": dead.detail[:DETAIL_CHARACTERS],
        "x-solstice-queue": STATUSES.queue,
        "x-solstice-refused-at": format_timestamp(datetime.fromtimestamp(now, UTC)),
        "x-solstice-refused-by": REFUSED_BY,
        "x-solstice-attempt": telling.failures + 1,
    }
