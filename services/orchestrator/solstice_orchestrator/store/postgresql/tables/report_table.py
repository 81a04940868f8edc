"""Stores the test reports of attempts, in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.records.report_records import AttemptNumber, ReportRecord, ReportView
from solstice_orchestrator.store.records.report_rows import (
    RECORDED,
    VIEW,
    report_columns,
    report_view,
)

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection


async def record(transaction: PostgreSQLTransaction, job_id: str, attempt: int, given: ReportRecord) -> bool:
    """Record the report of a running attempt."""
    connection = transaction.connection
    running = await connection.fetchrow(
        "SELECT repository, ref FROM jobs WHERE job_id = $1 AND attempt = $2 AND state = 'running' FOR SHARE",
        job_id,
        attempt,
    )
    if running is None:
        return False
    values = (job_id, attempt, *running, *report_columns(given, await transaction.now()))
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    replaced = ", ".join(f"{column} = excluded.{column}" for column in RECORDED)
    await connection.execute(
        f"INSERT INTO test_reports VALUES ({places}) ON CONFLICT (job_id, attempt) DO UPDATE SET {replaced}",  # noqa: S608  made of constants
        *values,
    )
    transaction.changed = True
    return True


async def listed(
    connection: "Connection", run_id: str | None, job_id: str | None, *, details: bool
) -> Sequence[ReportView]:
    """Return the reports of a run or job."""
    column, value = ("run_id", run_id) if job_id is None else ("job_id", job_id)
    rows = await connection.fetch(
        f"SELECT {VIEW}{', details' if details else ''} FROM test_reports AS report JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        f" WHERE jobs.{column} = $1 ORDER BY jobs.position, report.attempt",
        value,
    )
    return [report_view(row, row["details"] if details else None) for row in rows]


async def newest(
    connection: "Connection", repository: str, limit: int, ref: str | None
) -> Sequence[ReportView]:
    """Return the newest reports of a repository."""
    rows = await connection.fetch(
        f"SELECT {VIEW}, details FROM test_reports AS report JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        " WHERE report.repository = $1 AND ($2::text IS NULL OR report.ref = $2)"
        " ORDER BY report.created_at DESC, report.job_id DESC, report.attempt DESC LIMIT $3",
        repository,
        ref,
        limit,
    )
    return [report_view(row, row["details"]) for row in rows]


async def results(
    connection: "Connection", attempts: Collection[AttemptNumber]
) -> Mapping[AttemptNumber, bytes]:
    """Return the results of these attempts."""
    rows = await connection.fetch(
        "SELECT job_id, attempt, results FROM test_reports"
        " JOIN unnest($1::text[], $2::integer[]) AS wanted (job, number) ON job_id = job AND attempt = number",
        [job_id for job_id, _ in attempts],
        [number for _, number in attempts],
    )
    return {(row["job_id"], row["attempt"]): row["results"] for row in rows}
