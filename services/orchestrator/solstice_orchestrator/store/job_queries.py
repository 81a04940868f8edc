"""Read-only queries of the job store: runs, jobs, attempts, logs, waiting and demand."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Unpack

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.queue_times.demand import DemandFacts
from solstice_orchestrator.queue_times.waits import WaitFacts, WaitingClass, WatermarkLag
from solstice_orchestrator.store.views import (
    AttemptView,
    JobFilters,
    JobView,
    LogByte,
    LogPage,
    Page,
    RunFilters,
    RunView,
    WatermarkView,
)


class JobQueries(Protocol):
    """The part of `JobStore` that reads; each answer shows one moment."""

    async def runs(self, *, limit: int, after: str | None = None, **filters: Unpack[RunFilters]) -> Page:
        """Return runs, newest first, after the one with the id `after`."""
        ...

    async def run_counts(
        self, *, since_seconds: float | None = None, repository: str | None = None, ref: str | None = None
    ) -> Mapping[RunState, int]:
        """Return how many runs of the last `since_seconds` are in each state."""
        ...

    async def run(self, run_id: str) -> RunView | None: ...

    async def run_of_request(self, request_id: str) -> RunView | None: ...

    async def jobs(
        self,
        *,
        limit: int,
        run_id: str | None = None,
        after: str | None = None,
        **filters: Unpack[JobFilters],
    ) -> Sequence[JobView]:
        """Return jobs after the one with the id `after`.

        Those of one run are in workflow order, others newest first.
        """
        ...

    async def job(self, job_id: str) -> JobView | None: ...

    async def attempts(self, job_id: str) -> Sequence[AttemptView]:
        """Return every attempt at the job, oldest first."""
        ...

    async def log(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        after: int = 0,
        limit: int = 1000,
        service: str = "",
    ) -> LogPage | None:
        """Return log chunks with a sequence above `after`, of the newest attempt by default.

        They are those of the job, or of this service of it.

        None when the job does not exist.
        """
        ...

    async def logged_services(self, job_id: str, *, attempt: int) -> Sequence[str]:
        """Return the names of the services that have a log of this attempt."""
        ...

    async def log_byte(self, job_id: str, *, attempt: int, byte: int) -> LogByte:
        """Return where in an attempt's log this byte is.

        A negative offset counts from the end, and stops at the first byte.
        """
        ...

    async def planning(self, run_id: str) -> WaitFacts | None:
        """Return why a run has no jobs yet, for `waiting.explain`.

        None when it has jobs or does not exist.
        """
        ...

    async def waiting(self, job_id: str) -> WaitFacts | None:
        """Return why the job waits, for `waiting.explain`, as of one moment.

        None when the job does not exist.
        """
        ...

    async def backlog(self, most: int) -> int:
        """Count the runs to be planned and the jobs that wait for a slot, together.

        `most` means at least that many. Delayed runs are not counted: their time has not come.
        """
        ...

    async def delayed(self) -> int:
        """Count the runs that are DELAYED."""
        ...

    async def demand(self, within_seconds: float, label: str | None = None) -> DemandFacts:
        """Return the work to do, for `demand.demands`, as of one moment; optionally of one label.

        Delayed runs count when they start within this many seconds.
        """
        ...

    async def counts(self) -> Mapping[tuple[JobState, str], int]:
        """Count the unfinished jobs per state and label."""
        ...

    async def waiting_classes(self) -> Mapping[Priority, WaitingClass]:
        """Count the waiting jobs per priority class; those without any are left out."""
        ...

    async def watermarks(
        self,
        *,
        limit: int,
        after: tuple[str, str] = ("", ""),
        repository: str | None = None,
        ref: str | None = None,
        behind: bool = False,
    ) -> Sequence[WatermarkView]:
        """Return the watermarks of refs that have a push, by repository and ref.

        `after` is the repository and ref of the last one of the page before.
        `behind`: only those with a pending push behind the watermark.
        """
        ...

    async def watermark_lag(self) -> WatermarkLag:
        """Return how far all refs together are behind."""
        ...

    async def planning_pause(self) -> float | None:
        """Return the seconds until the next delayed run is to be planned.

        0 when it is due; None when none is delayed.
        """
        ...

    async def rate_pause(self, since_seconds: float = 0.0) -> float | None:
        """Return the seconds until the first exhausted rate or quota allows one more job.

        Rates and quotas are those of labels, repositories and owners. Asked after a claim that began `since_seconds`
        ago: 0 for one that has reached its next start since then. None when none was exhausted: then another limit kept
        the claim empty.
        """
        ...
