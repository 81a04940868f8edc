"""Compares the promised requests with the runs, the jobs' records, and the forge."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.views import AttemptView, JobView, RunView
from tests.gated_jobs import AttemptRecord

LOST_REASONS = {Reason.AGENT_LOST, Reason.LEASE_EXPIRED, Reason.RELEASED}
"""Attempts with these reasons do not count as effects: another attempt follows, by design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an audit: lists of errors."""

    promised: int
    ran: int
    lost: Sequence[str]
    """Requests of answered webhooks that never became a run which ended."""
    run_twice: Sequence[str]
    """Requests that became two runs, and runs without a request."""
    effects_twice: Sequence[str]
    """Jobs whose work was done once more although an attempt had ended by itself."""
    not_done: Sequence[str]
    """Jobs that succeeded by the store and did not do their work."""
    not_reported: Sequence[str]
    """Commits that do not show how each of their jobs ended."""

    @property
    def clean(self) -> bool:
        """Whether every promise was kept once."""
        return not (self.lost or self.run_twice or self.effects_twice or self.not_done or self.not_reported)

    def __str__(self) -> str:
        return (
            f"promised {self.promised}, ran {self.ran} jobs, lost {len(self.lost)},"
            f" duplicate runs {len(self.run_twice)}, duplicate effects {len(self.effects_twice)},"
            f" not done {len(self.not_done)}, not reported {len(self.not_reported)}"
        )


def audit(
    promised: Mapping[str, str],
    runs: Sequence[RunView],
    jobs: Sequence[JobView],
    attempts: Mapping[str, Sequence[AttemptView]],
    records: Sequence[AttemptRecord],
    shown: Mapping[str, Mapping[str, str]],
    contexts: Collection[str],
) -> Report:
    """Compare them. `promised` maps request ids to commits, `shown` commits to states by context. Pure."""
    by_request = Counter(run.request_id for run in runs)
    ended = {run.request_id for run in runs if run.state.final}
    done = Counter(record.key for record in records if record.event == "done")
    succeeded = [job for job in jobs if job.state is JobState.SUCCEEDED]
    return Report(
        promised=len(promised),
        ran=len(succeeded),
        lost=sorted(promised.keys() - ended),
        run_twice=sorted(
            request_id for request_id, count in by_request.items() if count > 1 or request_id not in promised
        ),
        effects_twice=sorted(
            {job_id for (job_id, _), count in done.items() if count > 1}
            | {job_id for job_id, tries in attempts.items() if _ended_by_itself(tries) > 1}
        ),
        not_done=sorted(job.job_id for job in succeeded if not done[job.job_id, job.attempt]),
        not_reported=sorted(
            commit
            for commit in promised.values()
            if any(shown.get(commit, {}).get(context) != "success" for context in contexts)
        ),
    )


def _ended_by_itself(attempts: Sequence[AttemptView]) -> int:
    return sum(each.finished_at is not None and each.reason not in LOST_REASONS for each in attempts)
