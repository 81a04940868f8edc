"""The store's promises about traces: which ended runs have spans that are not exported yet."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.views import JobView, RunView

STEPS_PER_RUN: Final = 100
"""How many steps of a run are traced."""
READ_STEPS: Final = STEPS_PER_RUN + 1
"""The last of them says when the one before it ended."""


class BegunStep(NamedTuple):
    """The mark of a step in the log of its attempt."""

    job_id: str
    attempt: int
    at: float
    """By the worker's clock."""
    mark: bytes


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
    steps: Sequence[BegunStep] = ()
    """Of all its attempts, in their order, but not more than READ_STEPS."""


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
    runs: Sequence[tuple[RunView, bytes]],
    jobs: Sequence[JobView],
    attempts: Sequence[Attempt],
    steps: Sequence[BegunStep],
) -> Sequence[TracedRun]:
    """Return the runs with their requests, each with its own jobs, attempts and steps."""
    jobs_of = defaultdict[str, list[JobView]](list)
    attempts_of = defaultdict[str, list[Attempt]](list)
    steps_of = defaultdict[str, list[BegunStep]](list)
    run_of = {job.job_id: job.run_id for job in jobs}
    for job in jobs:
        jobs_of[job.run_id].append(job)
    for attempt in attempts:
        attempts_of[run_of[attempt.job_id]].append(attempt)
    for step in steps:
        steps_of[run_of[step.job_id]].append(step)
    return [
        TracedRun(
            run=run,
            request=request,
            jobs=jobs_of[run.run_id],
            attempts=attempts_of[run.run_id],
            steps=steps_of[run.run_id],
        )
        for run, request in runs
    ]
