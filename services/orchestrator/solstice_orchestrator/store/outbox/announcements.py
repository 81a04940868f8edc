"""One status for each change of state, written after the decision's last change. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from solstice_common.messages.states import FINAL, JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.statuses import (
    RUN_CONTEXT,
    Status,
    context_of,
    describe_job,
    describe_run,
    shortened,
)
from solstice_orchestrator.reports.status_tests import described
from solstice_orchestrator.reports.values import StatusTests
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.moment import Moment

_WITH_EXIT_CODE: Final = FINAL | {JobState.BACKOFF}


class RunMoved(Struct, frozen=True, gc=False):
    """A run after its change of state, with the facts for its status."""

    run: Run
    reason: Reason | None
    jobs: Collection[JobState]

    @property
    def run_id(self) -> str:
        return self.run.run_id


StateChange = Job | RunMoved
"""A changed job needs no more facts than its own."""


def statuses(
    moment: Moment,
    subjects: Mapping[str, Status],
    moves: Iterable[StateChange],
    reported: Mapping[str, StatusTests] = MappingProxyType({}),
    results: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> Sequence[Status]:
    """Return the statuses in the order of the moves.

    `subjects`: what all statuses of a run have in common, by run id. `reported`: the tests of attempts that end here, by job id.
    `results`: what jobs that succeeded hand out, by job id.
    """
    now, stamp = moment.now, moment.stamp
    new_id, base = moment.rules.new_id, moment.rules.public_url
    announced = []
    for moved in moves:
        if isinstance(moved, Job):
            state = moved.state
            status = replace(
                subjects[moved.run_id],
                occurred_at=stamp,
                status_id=new_id(now),
                sequence=moved.sequence,
                context=context_of(moved.name),
                state=state,
                reason=moved.reason,
                description=describe_job(
                    state,
                    moved.reason,
                    detail=moved.detail,
                    runs_on=moved.runs_on,
                    attempt=moved.attempt,
                    failures=moved.failures,
                ),
                target_url=base and f"{base}/jobs/{moved.job_id}",
                job_id=moved.job_id,
                job_name=moved.name,
                attempt=moved.attempt or None,
                exit_code=moved.exit_code if state in _WITH_EXIT_CODE else None,
                result=results.get(moved.job_id) if results and state is JobState.SUCCEEDED else None,
            )
            if moved.job_id in reported:
                status = _with_tests(status, reported[moved.job_id], state)
        else:
            run = moved.run
            status = replace(
                subjects[run.run_id],
                occurred_at=stamp,
                status_id=new_id(now),
                sequence=run.sequence,
                context=RUN_CONTEXT,
                state=run.state,
                reason=moved.reason,
                description=describe_run(run.state, run.detail, moved.jobs),
                target_url=base and f"{base}/runs/{run.run_id}",
            )
        announced.append(status)
    return announced


def _with_tests(status: Status, tests: StatusTests, state: JobState) -> Status:
    description = described(tests, status.description or "", succeeded=state is JobState.SUCCEEDED)
    return replace(status, tests=tests, description=shortened(description))
