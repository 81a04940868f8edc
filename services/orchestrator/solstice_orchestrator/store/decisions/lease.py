"""Decides the answer to a holder that renews its leases or records progress. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.workers import state_at
from solstice_orchestrator.store.decisions.worker_records import WorkerRow
from solstice_orchestrator.store.protocol import AttemptKey, Renewal

_TAKEN_AWAY: Final = frozenset({Reason.AGENT_LOST, Reason.LEASE_EXPIRED})


def renewal(
    claimed: Sequence[AttemptKey],
    renewed: Mapping[AttemptKey, bool],
    ended: Mapping[AttemptKey, Reason],
    worker: WorkerRow,
    now: float,
) -> Renewal:
    """Return what the holder must know about the attempts that it claimed.

    `renewed`: the attempts with renewed leases, and whether their end was asked for; `ended`: how others ended.
    """
    return Renewal(
        # An attempt that its holder itself ended a moment ago is not lost.
        lost=frozenset(
            key for key in claimed if key not in renewed and (key not in ended or ended[key] in _TAKEN_AWAY)
        ),
        cancelled=frozenset(key for key, cancel_requested in renewed.items() if cancel_requested),
        state=state_at(worker.eligibility, now),
        quarantined_until=worker.quarantined_until,
        registered=worker.name != "",
    )


def progress(now: float, seconds: float, *, done: bool) -> tuple[float | None, float | None]:
    """Return since when an attempt prepares; once done, how long that took."""
    return (None, seconds) if done else (now - seconds, None)
