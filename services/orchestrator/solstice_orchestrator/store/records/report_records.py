"""The store's promises about test reports of attempts."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from solstice_orchestrator.reports.values import CaseCounts, JobReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord:
    """The test report of a running attempt."""

    report: JobReport
    commit_sha: str
    trusted: bool
    """Whether its code was; what strangers' code reports says nothing about the repository's own tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """The recorded report of an attempt, as readers see it."""

    run_id: str
    job_id: str
    job: str
    """The name of its job."""
    attempt: int
    repository: str
    commit_sha: str
    trusted: bool
    created_at: float
    counts: CaseCounts
    report: JobReport | None
    """Without its `results`; None where only the counts were asked for."""


RecordReport = Callable[[ReportRecord], Awaitable[bool]]
"""Records the report of one attempt; False: the attempt is no longer current."""

AttemptNumber = tuple[str, int]
"""A job's id and the number of one of its attempts."""


class ReportRecords(Protocol):
    """The part of `JobStore` about test reports, which are removed with their jobs."""

    async def record_report(self, job_id: str, attempt: int, record: ReportRecord) -> bool:
        """Record the report of a running attempt, replacing an earlier one of it.

        False when fenced.
        """
        ...

    async def reports(
        self, *, run_id: str | None = None, job_id: str | None = None, details: bool = True
    ) -> Sequence[ReportView]:
        """Return the reports of a run or job, by jobs and attempts."""
        ...

    async def repository_reports(
        self, repository: str, *, limit: int, ref: str | None = None
    ) -> Sequence[ReportView]:
        """Return the newest reports of a repository, newest first."""
        ...

    async def report_results(self, attempts: Collection[AttemptNumber]) -> Mapping[AttemptNumber, bytes]:
        """Return the `results` of these attempts; ask for few, each may have megabytes."""
        ...
