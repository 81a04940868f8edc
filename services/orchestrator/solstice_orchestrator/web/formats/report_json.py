"""Convert test reports to the JSON of API v1. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import msgspec

from solstice_orchestrator.reports.flaky import FlakyTest
from solstice_orchestrator.reports.values import NOTHING_REPORTED, CaseCounts, JobReport, TestCaseResult
from solstice_orchestrator.store.records.report_records import ReportView
from solstice_orchestrator.web.formats.api_json import Document, rfc3339


def newest_reports(views: Iterable[ReportView]) -> Sequence[ReportView]:
    """Return the report of the newest attempt of each job."""
    newest: dict[str, ReportView] = {}
    for view in views:
        known = newest.get(view.job_id)
        if known is None or view.attempt > known.attempt:
            newest[view.job_id] = view
    return list(newest.values())


def counts_together(views: Iterable[ReportView]) -> CaseCounts:
    """Return the counts of these reports together."""
    return reduce(CaseCounts.plus, (view.counts for view in views), CaseCounts())


def reports_document(views: Sequence[ReportView]) -> Document:
    """Return reports, and the counts of the newest of each job together."""
    return {
        "counts": counts_document(counts_together(newest_reports(views))),
        "reports": [report_document(view) for view in views],
    }


def report_head(view: ReportView) -> Document:
    """Return of which attempt a report is."""
    return {
        "run_id": view.run_id,
        "job_id": view.job_id,
        "job": view.job,
        "attempt": view.attempt,
        "commit_sha": view.commit_sha,
        "trusted": view.trusted,
        "created_at": rfc3339(view.created_at),
    }


def report_document(view: ReportView) -> Document:
    """Return the report of an attempt."""
    report: JobReport = view.report or NOTHING_REPORTED
    return {
        **report_head(view),
        "counts": counts_document(view.counts),
        "failed": [test_document(each) for each in report.failed],
        "flaky": [test_document(each) for each in report.flaky],
        "slowest": [test_document(each) for each in report.slowest],
        "problems": list(report.problems),
    }


def counts_document(counts: CaseCounts) -> Mapping[str, float]:
    """Return counts with their sum."""
    fields: dict[str, float] = msgspec.to_builtins(counts)
    return {"total": counts.total, **fields, "seconds": round(counts.seconds, 3)}


def test_document(test: TestCaseResult) -> Document:
    """Return one test, with its full name."""
    fields: Document = msgspec.to_builtins(test)
    return {"full_name": test.full_name, **fields}


def flaky_document(test: FlakyTest) -> Document:
    """Return a flaky test."""
    fields: Document = msgspec.to_builtins(test)
    return {**fields, "last_at": rfc3339(test.last_at)}
