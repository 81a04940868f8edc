"""Ends attempts in the SQLite store."""

import json
from collections.abc import Mapping, Sequence

from solstice_orchestrator.store.decisions.finish import AttemptEnd, by_key, ended_attempts, finish_attempts
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    attempts_of,
    load_runs,
    write,
)


def finish(transaction: SqliteTransaction, group: Sequence[AttemptEnd]) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before."""
    job_ids = list({end.key.job_id for end in group})
    goes_on = _goes_on(transaction, job_ids)
    unit = load_runs(transaction, [run_id for run_id, goes in goes_on.items() if not goes], job_ids)
    past = attempts_of(transaction, [key.job_id for key in ended_attempts(unit, group)])
    answers = finish_attempts(unit, group, by_key(past), [run_id for run_id, goes in goes_on.items() if goes])
    write(transaction, unit.changes())
    return answers


def _goes_on(transaction: SqliteTransaction, job_ids: Sequence[str]) -> Mapping[str, bool]:
    """Return the runs of these jobs, and whether their ends leave those unchanged.

    That is so while another job of the run is running and none is blocked.
    """
    rows = transaction.connection.execute(
        "WITH ended AS (SELECT value AS job_id FROM json_each(?)) SELECT run_id,"
        " EXISTS (SELECT 1 FROM jobs WHERE run_id = job.run_id AND state = 'running' AND job_id NOT IN ended)"
        " AND NOT EXISTS (SELECT 1 FROM jobs WHERE run_id = job.run_id AND state = 'blocked') AS goes_on"
        " FROM jobs AS job WHERE job_id IN ended GROUP BY run_id",
        (json.dumps(job_ids),),
    )
    return {row["run_id"]: bool(row["goes_on"]) for row in rows}
