"""Concurrency groups and runs of a ref in the SQLite store."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.reruns import NOT_A_RERUN, RerunScope, rerun_scope_of
from solstice_orchestrator.store.decisions.supersede import (
    GroupMemberRow,
    RefHistory,
    ref_digest,
    runs_concerned,
    settle,
)
from solstice_orchestrator.store.records.changes import RefRun
from solstice_orchestrator.store.sqlite.tables.transaction import REQUEST, SqliteTransaction, load_runs, write


def settle_groups(transaction: SqliteTransaction) -> None:
    """Settle the groups that were asked for or left, until nothing follows.

    The next member of each group goes on, and superseded members end.
    """
    while transaction.groups:
        rows = members_of(transaction.connection, transaction.groups.pop())
        run_ids = runs_concerned(rows)
        if run_ids:
            unit = load_runs(transaction, run_ids)
            settle(unit, rows)
            write(transaction, unit.changes())


def members_of(connection: sqlite3.Connection, group: bytes) -> Sequence[GroupMemberRow]:
    """Return the members that hold the group or ask for it."""
    return [GroupMemberRow(*row) for row in connection.execute(_MEMBERS, {"group": group})]


def ref_history(transaction: SqliteTransaction, request: JobRequestV1) -> RefHistory:
    """Return the remembered runs of a request's branch or change request.

    Ended runs beyond the limit are deleted.
    """
    ref_key = ref_digest(request)
    if ref_key is None:
        return RefHistory()
    execute = transaction.connection.execute
    open_runs: list[RefRun] = []
    past: list[RefRun] = []
    for is_open, run_id, _, supersede, rerun, *columns in execute(_REF_RUNS, (ref_key,)):
        rule = None if supersede is None else bool(supersede)
        (open_runs if is_open else past).append(RefRun(run_id, ref_key, rule, bool(rerun), *columns))
    history = RefHistory(open_runs, past)
    if history.forgettable:
        execute(
            "DELETE FROM ref_runs WHERE run_id IN (SELECT value FROM json_each(?))",
            (json.dumps(history.forgettable),),
        )
    return history


def rerun_scope(transaction: SqliteTransaction, run_id: str) -> RerunScope:
    """Return whether the run is a rerun, and of which jobs."""
    row = transaction.connection.execute(
        "SELECT rerun_of, only_jobs FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return NOT_A_RERUN if row is None else rerun_scope_of(*row)


_REF_RUNS: Final = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = ref_runs.run_id AND finished_at IS NULL),"  # noqa: S608  made of constants
    f" {', '.join(RefRun._fields)} FROM ref_runs WHERE ref_key = ? ORDER BY run_id DESC"
)
_MEMBERS: Final = f"""
SELECT NULL, run_id, 0, group_acquired,
    EXISTS (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id AND state = 'running'),
    concurrency, created_at, {REQUEST}
FROM runs WHERE group_key = :group AND finished_at IS NULL
UNION ALL
SELECT jobs.job_id, jobs.run_id, jobs.position, jobs.state NOT IN ('blocked', 'approval'), jobs.state = 'running',
    jobs.spec, runs.created_at, {REQUEST}
FROM jobs JOIN runs USING (run_id)
WHERE jobs.group_key = :group AND jobs.finished_at IS NULL AND (jobs.state NOT IN ('blocked', 'approval')
    OR jobs.reason = 'concurrency_group' AND (runs.group_key IS NULL OR runs.group_acquired))
"""  # noqa: S608  made of constants
