"""Concurrency groups and lineages in the SQLite store."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.reruns import FIRST, Again, again_of
from solstice_orchestrator.store.decisions.supersede import Lineage, MemberRow, concerned, lineage_of, settle
from solstice_orchestrator.store.records.changes import Kin
from solstice_orchestrator.store.sqlite.tables.transaction import REQUEST, Transaction, ledger_of_runs, write


def settle_groups(transaction: Transaction) -> None:
    """Let go who is next in the groups that were asked for or left, and end who makes way; until nothing follows from it."""
    while transaction.groups:
        rows = members_of(transaction.connection, transaction.groups.pop())
        run_ids = concerned(rows)
        if run_ids:
            ledger = ledger_of_runs(transaction, run_ids)
            settle(ledger, rows)
            write(transaction, ledger.changes())


def members_of(connection: sqlite3.Connection, group: bytes) -> Sequence[MemberRow]:
    """Who holds the group or asks for it."""
    return [MemberRow(*row) for row in connection.execute(_MEMBERS, {"group": group})]


def kin_of(transaction: Transaction, request: JobRequestV1) -> Lineage:
    """What is remembered of a request's branch or change request; too many of those that have ended are forgotten."""
    lineage = lineage_of(request)
    if lineage is None:
        return Lineage()
    execute = transaction.connection.execute
    kin: list[Kin] = []
    past: list[Kin] = []
    for is_open, *columns in execute(_KIN, (lineage,)):
        each = Kin(*columns)
        said = None if each.supersede is None else bool(each.supersede)
        (kin if is_open else past).append(each._replace(supersede=said, rerun=bool(each.rerun)))
    found = Lineage(kin, past)
    if found.forgettable:
        execute(
            "DELETE FROM lineages WHERE run_id IN (SELECT value FROM json_each(?))",
            (json.dumps(found.forgettable),),
        )
    return found


def again(transaction: Transaction, run_id: str) -> Again:
    """Whether the run is another one again, and how much of it."""
    row = transaction.connection.execute(
        "SELECT rerun_of, only_jobs FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return FIRST if row is None else again_of(*row)


_KIN: Final = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = lineages.run_id AND finished_at IS NULL),"  # noqa: S608  made of constants
    f" {', '.join(Kin._fields)} FROM lineages WHERE lineage = ? ORDER BY run_id DESC"
)
_MEMBERS: Final = f"""
SELECT NULL, run_id, 0, group_held,
    EXISTS (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id AND state = 'running'),
    concurrency, created_at, {REQUEST}
FROM runs WHERE group_key = :group AND finished_at IS NULL
UNION ALL
SELECT jobs.job_id, jobs.run_id, jobs.position, jobs.state NOT IN ('blocked', 'approval'), jobs.state = 'running',
    jobs.spec, runs.created_at, {REQUEST}
FROM jobs JOIN runs USING (run_id)
WHERE jobs.group_key = :group AND jobs.finished_at IS NULL AND (jobs.state NOT IN ('blocked', 'approval')
    OR jobs.reason = 'concurrency_group' AND (runs.group_key IS NULL OR runs.group_held))
"""  # noqa: S608  made of constants
