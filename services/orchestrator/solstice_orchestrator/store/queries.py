"""What the store tells of runs, jobs, attempts and logs; nothing of it changes anything."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Unpack

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.demand import DemandFacts
from solstice_orchestrator.queue_times.waits import WaitFacts
from solstice_orchestrator.store.views import (
    AttemptView,
    JobFilters,
    JobView,
    LogPage,
    LogPlace,
    Page,
    RunFilters,
    RunView,
)


class JobQueries(Protocol):
    """Part of `JobStore`, and under its promises; each answer is of one moment."""

    async def runs(self, *, limit: int, after: str | None = None, **wanted: Unpack[RunFilters]) -> Page:
        """Runs, newest first, behind the one with the id `after`."""
        ...

    async def run(self, run_id: str) -> RunView | None: ...

    async def run_of_request(self, request_id: str) -> RunView | None: ...

    async def jobs(
        self, *, limit: int, run_id: str | None = None, after: str | None = None, **wanted: Unpack[JobFilters]
    ) -> Sequence[JobView]:
        """Jobs behind the one with the id `after`: of one run in workflow order, else newest first."""
        ...

    async def job(self, job_id: str) -> JobView | None: ...

    async def attempts(self, job_id: str) -> Sequence[AttemptView]:
        """Every try at the job, oldest first."""
        ...

    async def log(
        self, job_id: str, *, attempt: int | None = None, after: int = 0, limit: int = 1000
    ) -> LogPage | None:
        """Log chunks with a sequence above `after`, of the newest attempt unless told. None when there is no job."""
        ...

    async def log_place(self, job_id: str, *, attempt: int, byte: int) -> LogPlace:
        """Where that byte of an attempt's log is; counted from its end when negative, and then at least the first."""
        ...

    async def planning(self, run_id: str) -> WaitFacts | None:
        """Why a run has no jobs yet, for `waiting.explain`; None when it has, or there is no such run."""
        ...

    async def waiting(self, job_id: str) -> WaitFacts | None:
        """Why the job waits, for `waiting.explain`, all of one moment. None when there is no such job."""
        ...

    async def backlog(self, most: int) -> int:
        """How many runs are to be planned, and jobs wait for a slot, together; `most` means at least as many.

        Not those that are delayed: their time has not come.
        """
        ...

    async def delayed(self) -> int:
        """How many runs are DELAYED."""
        ...

    async def demand(self, within_seconds: float, label: str | None = None) -> DemandFacts:
        """What there is to do, for `demand.demands`, all of one moment; of one label alone if given.

        Delayed runs are those that start within so many seconds.
        """
        ...

    async def counts(self) -> Mapping[tuple[JobState, str], int]:
        """How many unfinished jobs there are per state and label."""
        ...

    async def planning_pause(self) -> float | None:
        """In how many seconds the next delayed run is to be planned, 0 when it is due; None when none is delayed."""
        ...

    async def rate_pause(self, since_seconds: float = 0.0) -> float | None:
        """In how many seconds the first label, repository or owner that had reached its rate or quota may start one more job.

        Asked of a claim that began `since_seconds` ago: 0 for one that has come to its next start meanwhile. None when
        none had reached its own: then it was not for one of these that nothing was claimed.
        """
        ...
