"""The store's promises about traces: which ended runs have spans that are not exported yet."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.views import JobView, RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """A run that has ended, with all that its spans say."""

    run: RunView
    request: bytes
    """`jobrequest.v1` as it came."""
    jobs: Sequence[JobView]
    """In the order of the workflow."""
    attempts: Sequence[Attempt]
    """Of all its jobs; those of one job in their order."""


class RunTraces(Protocol):
    """The part of `JobStore` about traces."""

    async def take_traces(self, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
        """Return ended runs that wait to be traced, oldest first.

        No other process gets them for so many seconds. Runs wait from their admission on if the store's sampler samples
        them.
        """
        ...

    async def traced(self, run_ids: Sequence[str]) -> None:
        """Record that these runs need not be traced any more."""
        ...


def ended_runs(
    runs: Sequence[tuple[RunView, bytes]], jobs: Sequence[JobView], attempts: Sequence[Attempt]
) -> Sequence[TracedRun]:
    """Return the runs with their requests, each with its own of these jobs and attempts."""
    jobs_of = defaultdict[str, list[JobView]](list)
    attempts_of = defaultdict[str, list[Attempt]](list)
    run_of = {job.job_id: job.run_id for job in jobs}
    for job in jobs:
        jobs_of[job.run_id].append(job)
    for attempt in attempts:
        attempts_of[run_of[attempt.job_id]].append(attempt)
    return [
        TracedRun(run=run, request=request, jobs=jobs_of[run.run_id], attempts=attempts_of[run.run_id])
        for run, request in runs
    ]
