"""Runs end because somebody cancelled their change request, also those that come after the cancel request. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from solstice_common.messages import JobCancelV1, stored_request
from solstice_common.times import parse_timestamp
from solstice_orchestrator.domain.cancels import cancel_applies, change_key, describe_cancel
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.seniority import seniority
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.store.decisions.steer import end_run
from solstice_orchestrator.store.decisions.transitions import UnitOfWork


class CancelRow(NamedTuple):
    """A cancel request, as a store keeps it: the latest of its change request."""

    change_key: str
    asked_at: float
    """What was asked for before is to end; never later than when the cancel request came to us."""
    detail: str
    """Who wanted it."""
    kept_at: float


def cancel_row_of(cancel: JobCancelV1, now: float) -> CancelRow:
    """The row of a message. One that claims to come from the future is of now."""
    asked_at = min(parse_timestamp(cancel.submitted_at).timestamp(), now)
    return CancelRow(change_key(cancel) or "", asked_at, storable(describe_cancel(cancel)), now)


def end_cancelled_runs(unit: UnitOfWork, cancel_rows: Iterable[CancelRow]) -> Sequence[str]:
    """End the runs in the unit of work that one of the cancel requests is about, or have their jobs ended; the ids of these runs."""
    by_change = {cancel_row.change_key: cancel_row for cancel_row in cancel_rows}
    reached: list[str] = []
    for run in list(unit.runs.values()):
        request = stored_request(run.request)
        cancel_row = by_change.get(change_key(request) or "")
        submitted_at = parse_timestamp(request.submitted_at).timestamp()
        asked_at = seniority(submitted_at, run.created_at, 0).asked_at
        if cancel_row is not None and not run.state.final and cancel_applies(cancel_row.asked_at, asked_at):
            end_run(unit, run.run_id, Reason.CANCEL_REQUESTED, cancel_row.detail)
            reached.append(run.run_id)
    return reached
