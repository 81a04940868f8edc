"""Runs end because somebody cancelled their change request, also those that come after the wish. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from solstice_common.messages import JobCancelV1, stored_request
from solstice_common.times import parse_timestamp
from solstice_orchestrator.domain.cancels import change_key, reaches, words_of
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.seniority import seniority
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.store.decisions.steer import end_run
from solstice_orchestrator.store.decisions.transitions import Ledger


class Wish(NamedTuple):
    """A wish to cancel, as a store keeps it: the latest of its change request."""

    change_key: str
    asked_at: float
    """What was asked for before is to end; never later than when the wish came to us."""
    detail: str
    """Who wanted it."""
    kept_at: float


def wish_of(cancel: JobCancelV1, now: float) -> Wish:
    """The row of a message. One that claims to come from the future is of now."""
    asked_at = min(parse_timestamp(cancel.submitted_at).timestamp(), now)
    return Wish(change_key(cancel) or "", asked_at, storable(words_of(cancel)), now)


def end_reached(ledger: Ledger, wishes: Iterable[Wish]) -> Sequence[str]:
    """End the runs in the ledger that one of the wishes is about, or have their jobs ended; the ids of these runs."""
    by_change = {wish.change_key: wish for wish in wishes}
    reached: list[str] = []
    for run in list(ledger.runs.values()):
        request = stored_request(run.request)
        wish = by_change.get(change_key(request) or "")
        submitted_at = parse_timestamp(request.submitted_at).timestamp()
        asked_at = seniority(submitted_at, run.created_at, 0).asked_at
        if wish is not None and not run.state.final and reaches(wish.asked_at, asked_at):
            end_run(ledger, run.run_id, Reason.CANCEL_REQUESTED, wish.detail)
            reached.append(run.run_id)
    return reached
