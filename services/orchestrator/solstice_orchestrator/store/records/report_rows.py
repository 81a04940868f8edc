"""Convert rows of test reports to values and back, the same for every database. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from solstice_orchestrator.reports.reduction import bounded
from solstice_orchestrator.reports.values import CaseCounts, decode_report, encode_report
from solstice_orchestrator.store.records.report_records import ReportRecord, ReportView
from solstice_orchestrator.store.records.rows import DatabaseRow

VIEW: Final = (
    "jobs.run_id, jobs.name AS job, report.job_id, report.attempt, report.repository, report.commit_sha, report.trusted,"
    " report.created_at, report.passed, report.failed, report.errored, report.skipped, report.flaky, report.seconds"
)
RECORDED: Final = (
    "commit_sha",
    "trusted",
    "created_at",
    *CaseCounts.__struct_fields__,
    "details",
    "results",
)
"""The columns after those that come from the job's own row, in the order of the table."""


def report_columns(record: ReportRecord, now: float) -> Sequence[Any]:
    """Return the values of RECORDED."""
    report = bounded(record.report)
    return (
        record.commit_sha,
        record.trusted,
        now,
        *structs.astuple(report.counts),
        encode_report(structs.replace(report, results=b"")),
        report.results,
    )


def report_view(row: DatabaseRow, details: bytes | None) -> ReportView:
    return ReportView(
        run_id=row["run_id"],
        job_id=row["job_id"],
        job=row["job"],
        attempt=row["attempt"],
        repository=row["repository"],
        commit_sha=row["commit_sha"],
        trusted=bool(row["trusted"]),
        created_at=row["created_at"],
        counts=CaseCounts(**{name: row[name] for name in CaseCounts.__struct_fields__}),
        report=None if details is None else decode_report(details),
    )
