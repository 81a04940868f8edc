"""Leases are prolonged by their holders, and ended when nobody does."""

from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.jobs import Reason
from solstice_orchestrator.store.protocol import AttemptKey, Renewal
from solstice_orchestrator.store.transaction import Transaction

_TAKEN_AWAY: Final = frozenset({Reason.AGENT_LOST.value, Reason.LEASE_EXPIRED.value})


def beat(transaction: Transaction, worker_id: str) -> None:
    """The worker is alive."""
    transaction.connection.execute(
        "INSERT INTO workers VALUES (?, ?, ?) ON CONFLICT (worker_id) DO UPDATE SET seen_at = excluded.seen_at",
        (worker_id, transaction.now, transaction.now),
    )


def renew(transaction: Transaction, worker_id: str, held: Sequence[AttemptKey]) -> Renewal:
    """Prolong what is still the worker's; say what is not, and what somebody wants ended."""
    beat(transaction, worker_id)
    until = transaction.now + transaction.rules.lease_seconds
    lost: set[AttemptKey] = set()
    cancelled: set[AttemptKey] = set()
    for key in held:
        row = transaction.connection.execute(
            "UPDATE jobs SET lease_until = ? WHERE job_id = ? AND attempt = ? AND worker_id = ?"
            " AND state = 'running' RETURNING cancel_asked",
            (until, key.job_id, key.number, worker_id),
        ).fetchone()
        if row is None:
            if not _ended_by_holder(transaction, key):
                lost.add(key)
        elif row["cancel_asked"]:
            cancelled.add(key)
    return Renewal(lost=frozenset(lost), cancelled=frozenset(cancelled))


def _ended_by_holder(transaction: Transaction, key: AttemptKey) -> bool:
    """Its end was recorded a moment ago, by whoever asks: nothing was lost."""
    row = transaction.connection.execute(
        "SELECT reason FROM attempts WHERE job_id = ? AND number = ? AND finished_at IS NOT NULL",
        (key.job_id, key.number),
    ).fetchone()
    return row is not None and row["reason"] not in _TAKEN_AWAY
