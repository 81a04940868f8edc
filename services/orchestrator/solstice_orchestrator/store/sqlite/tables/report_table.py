"""Stores the test reports of attempts, in SQLite."""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence

from solstice_orchestrator.store.records.report_records import AttemptNumber, ReportRecord, ReportView
from solstice_orchestrator.store.records.report_rows import VIEW, report_columns, report_view
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction


def record(transaction: SqliteTransaction, job_id: str, attempt: int, given: ReportRecord) -> bool:
    """Record the report of a running attempt."""
    execute = transaction.connection.execute
    running = execute(
        "SELECT repository, ref FROM jobs WHERE job_id = ? AND attempt = ? AND state = 'running'",
        (job_id, attempt),
    ).fetchone()
    if running is None:
        return False
    values = (job_id, attempt, *running, *report_columns(given, transaction.now))
    execute(f"INSERT OR REPLACE INTO test_reports VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608  marks alone
    return True


def listed(
    connection: sqlite3.Connection, run_id: str | None, job_id: str | None, *, details: bool
) -> Sequence[ReportView]:
    """Return the reports of a run or job."""
    column, value = ("run_id", run_id) if job_id is None else ("job_id", job_id)
    rows = connection.execute(
        f"SELECT {VIEW}{', details' if details else ''} FROM test_reports AS report JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        f" WHERE jobs.{column} = ? ORDER BY jobs.position, report.attempt",
        (value,),
    )
    return [report_view(row, row["details"] if details else None) for row in rows]


def newest(
    connection: sqlite3.Connection, repository: str, limit: int, ref: str | None
) -> Sequence[ReportView]:
    """Return the newest reports of a repository."""
    rows = connection.execute(
        f"SELECT {VIEW}, details FROM test_reports AS report JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        " WHERE report.repository = ?1 AND (?2 IS NULL OR report.ref = ?2)"
        " ORDER BY report.created_at DESC, report.job_id DESC, report.attempt DESC LIMIT ?3",
        (repository, ref, limit),
    )
    return [report_view(row, row["details"]) for row in rows]


def results(
    connection: sqlite3.Connection, attempts: Collection[AttemptNumber]
) -> Mapping[AttemptNumber, bytes]:
    """Return the results of these attempts."""
    rows = connection.execute(
        "SELECT job_id, attempt, results FROM test_reports WHERE (job_id, attempt) IN"
        " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
        (json.dumps(list(attempts)),),
    )
    return {(row["job_id"], row["attempt"]): row["results"] for row in rows}
