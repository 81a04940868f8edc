"""Ends the runs of a cancelled change request, including those that come later. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from solstice_common.messages import JobCancelV1, stored_request
from solstice_common.values.times import parse_timestamp
from solstice_orchestrator.domain.cancels import cancel_applies, change_key, describe_cancel
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.store.decisions.steer import end_run
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import Cancelled
from solstice_orchestrator.superseding.seniority import seniority


class CancelRow(NamedTuple):
    """A stored cancel request: the latest of its change request."""

    change_key: str
    requested_at: float
    """Runs requested before this time end; never later than when the cancel request arrived."""
    detail: str
    """The requester, as text."""
    stored_at: float


def cancel_row_of(cancel: JobCancelV1, now: float) -> CancelRow:
    """Return the row of a message; a time in the future becomes now."""
    requested_at = min(parse_timestamp(cancel.submitted_at).timestamp(), now)
    return CancelRow(change_key(cancel) or "", requested_at, storable(describe_cancel(cancel)), now)


def cancelled(unit: UnitOfWork, cancel_row: CancelRow, *, known: bool) -> Cancelled:
    """End these runs of a change request.

    `known`: whether the change request ever had a run.
    """
    return Cancelled(run_ids=tuple(end_cancelled_runs(unit, [cancel_row])), known=known)


def end_cancelled_runs(unit: UnitOfWork, cancel_rows: Iterable[CancelRow]) -> Sequence[str]:
    """End the runs that one of the cancel requests covers, and return their ids.

    The runs are in the unit of work. A running job is ended by its holder.
    """
    by_change = {cancel_row.change_key: cancel_row for cancel_row in cancel_rows}
    reached: list[str] = []
    for run in list(unit.runs.values()):
        request = stored_request(run.request)
        cancel_row = by_change.get(change_key(request) or "")
        submitted_at = parse_timestamp(request.submitted_at).timestamp()
        requested_at = seniority(submitted_at, run.created_at, 0).requested_at
        if (
            cancel_row is not None
            and not run.state.final
            and cancel_applies(cancel_row.requested_at, requested_at)
        ):
            end_run(unit, run.run_id, Reason.CANCEL_REQUESTED, cancel_row.detail)
            reached.append(run.run_id)
    return reached
