"""Ends attempts in the SQLite store."""

from collections.abc import Sequence

from solstice_orchestrator.store.decisions.finish import AttemptEnd, by_key, ended_attempts, finish_attempts
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    attempts_of,
    load_jobs,
    write,
)


def finish(transaction: SqliteTransaction, group: Sequence[AttemptEnd]) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before."""
    unit = load_jobs(transaction, {key.job_id for key, _ in group})
    past = attempts_of(transaction, [key.job_id for key in ended_attempts(unit, group)])
    answers = finish_attempts(unit, group, by_key(past))
    write(transaction, unit.changes())
    return answers
