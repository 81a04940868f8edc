"""The only place where jobs and runs change their state. Pure.

A decision moves the loaded rows, and returns the rows to write.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from solstice_common.broker.headers import REFUSED_AT_HEADER, RUN_HEADER
from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_orchestrator.domain.jobs import JobCondition, Outcome, Reason, may_move, run_state
from solstice_orchestrator.domain.needs import DependencyNode, unblock
from solstice_orchestrator.domain.statuses import (
    Status,
    detail_of,
    read_subject,
    result_of,
    status_about,
    storable,
)
from solstice_orchestrator.reports.values import StatusTests
from solstice_orchestrator.store.outbox.announcements import RunMoved, StateChange, statuses
from solstice_orchestrator.store.outbox.dead_letter import dead_letter_headers
from solstice_orchestrator.store.records.changes import (
    Attempt,
    ChunkRow,
    Job,
    OutputsRow,
    RefRun,
    RequestDeadLetter,
    RowChanges,
    Run,
    begun_with,
)
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.workflow.conditions.terms import unmet_by_results

# Named here: looking a member up in its class takes longer than the rest of the check (Python 3.11).
_BLOCKED: Final = JobState.BLOCKED
_WAITING: Final = JobState.WAITING
_RUNNING: Final = JobState.RUNNING
_RUN_RUNS: Final = RunState.RUNNING
_RUN_CANCELLED: Final = RunState.CANCELLED
_RUN_ERRORED: Final = RunState.ERRORED

_NEVER_WAITED: Final = frozenset({_BLOCKED, JobState.APPROVAL})


class IllegalMove(Exception):
    """A transition that the table in `jobs.py` does not have: a bug in our code."""

    def __init__(self, job_id: str, old: JobState, new: JobState) -> None:
        super().__init__(f"job {job_id} may not go from {old.value} to {new.value}")


class UnitOfWork:
    """Loaded runs and jobs, with their changes; `changes` returns what to write.

    A store loads runs with all their jobs (`attempts`: the ended ones of jobs that failed before), in the order of
    `position`. Claims, and ends after which a run goes on as before, load single jobs and settle no run. `subjects`: those that are already known, by run id.
    A run that has begun with its only job has its true state here, even when its row is behind (`begun_with`).
    """

    def __init__(
        self,
        moment: Moment,
        runs: Iterable[Run] = (),
        jobs: Iterable[Job] = (),
        attempts: Iterable[Attempt] = (),
        subjects: Mapping[str, Status] | None = None,
    ) -> None:
        self.moment = moment
        self.now = moment.now
        self.runs = {run.run_id: run for run in runs}
        self.jobs = {job.job_id: job for job in jobs}
        self._runs_before, self._jobs_before = dict(self.runs), dict(self.jobs)
        for job in self.jobs.values():
            if job.state is _RUNNING:
                self.runs[job.run_id] = begun_with(self.runs[job.run_id], job)
        self._past = list(attempts)
        self._changed_runs: dict[str, None] = {}
        self._changed_jobs: dict[str, None] = {}
        self._new: dict[str, bytes] = {}
        self._ended: list[Attempt] = []
        self._log_rows: list[ChunkRow] = []
        self._outputs: list[OutputsRow] = []
        self._results: dict[str, Mapping[str, object]] = {}
        self._moves: list[StateChange] = []
        self._dead_letters: list[RequestDeadLetter] = []
        self._arrivals: list[str] = []
        self._given_up: list[Job] = []
        self._ref_runs: list[RefRun] = []
        self._groups: dict[bytes, None] = {}
        self._subjects = dict(subjects or {})
        self._reported: dict[str, StatusTests] = {}

    def changes(self) -> RowChanges:
        """Return the rows to write."""
        return RowChanges(
            runs=[self.runs[run_id] for run_id in self._changed_runs],
            jobs=[self.jobs[job_id] for job_id in self._changed_jobs if job_id not in self._new],
            runs_before=self._runs_before,
            jobs_before=self._jobs_before,
            new_jobs=[self.jobs[job_id] for job_id in self._new],
            specs=self._new,
            attempts=self._ended,
            log_rows=self._log_rows,
            outputs=self._outputs,
            statuses=self._statuses(),
            dead_letters=self._dead_letters,
            arrivals=self._arrivals,
            given_up=self._given_up,
            ref_runs=self._ref_runs,
            groups=list(self._groups),
        )

    # -- jobs -----------------------------------------------------------------------------------------------------

    def jobs_of(self, run_id: str) -> Sequence[Job]:
        """Return the run's jobs in workflow order."""
        return [job for job in self.jobs.values() if job.run_id == run_id]

    def add(self, job: Job, spec: bytes) -> None:
        """Add a new job in its first state, with a status like any transition."""
        self._new[job.job_id] = spec
        if job.state is JobState.WAITING:
            self._arrivals.append(job.job_id)
            job = replace(job, waiting_since=self.now)
        self._record_move(replace(job, sequence=1))
        if job.reason is Reason.CONCURRENCY_GROUP:
            self.request_group(job.job_id)

    def move(self, job: Job, new: JobState, reason: Reason, detail: str = "") -> None:
        """Move a job to `new`, with a status; `job` has the other columns' new values.

        The run does not change: call `settle` once all its jobs have moved. Raises IllegalMove.
        """
        known = self.jobs[job.job_id]
        old = known.state
        if not may_move(old, new):
            raise IllegalMove(job.job_id, old, new)
        waits, final = new is _WAITING, new in FINAL
        if waits and old in _NEVER_WAITED:
            self._arrivals.append(job.job_id)
        if final and old is _WAITING:
            self._given_up.append(known)
        if final and job.group_key is not None:
            self._groups[job.group_key] = None
        self._record_move(
            replace(
                job,
                state=new,
                reason=reason,
                detail=detail,
                waiting_since=self.now if waits else job.waiting_since,
                finished_at=self.now if final else None,
                sequence=known.sequence + 1,
            )
        )

    def change_class(self, job_id: str, priority: int) -> None:
        """Give a job another priority (a rank) and a new start tag.

        Start tags of two classes cannot be compared. The start tag of a waiting job becomes free; a running job has used its
        start tag, and needs the new one if it has to wait again.
        """
        job = self.jobs[job_id]
        if job.state is JobState.WAITING:
            self._given_up.append(job)
        if job.state not in _NEVER_WAITED:
            self._arrivals.append(job_id)
        self.change(job_id, priority=priority)

    def change(self, job_id: str, **columns: Any) -> None:
        """Set columns that no status shows."""
        self.jobs[job_id] = replace(self.jobs[job_id], **columns)
        self._changed_jobs[job_id] = None

    def close(self, job: Job, outcome: Outcome) -> Attempt:
        """Close the job's running attempt; the caller decides what the job does next."""
        started_at = self.now if job.started_at is None else job.started_at
        # Positional arguments take half the time.
        attempt = Attempt(
            job.job_id,
            job.attempt,
            job.worker_id or "",
            outcome.state,
            outcome.reason,
            started_at,
            self.now,
            outcome.exit_code,
            outcome.step,
            detail_of(outcome),
            outcome.image,
            outcome.provisioning_seconds,
        )
        self._ended.append(attempt)
        if outcome.tests is not None:
            self._reported[job.job_id] = outcome.tests
        return attempt

    def add_log(self, rows: Iterable[ChunkRow]) -> None:
        """Add chunks of the log of a running attempt."""
        self._log_rows += rows

    def add_results(self, job: Job, outcome: Outcome) -> None:
        """Add what a job that has succeeded hands out."""
        if outcome.outputs:
            content = json.dumps(dict(outcome.outputs), ensure_ascii=False)
            self._outputs.append(OutputsRow(job.job_id, job.attempt, content))
        result = result_of(outcome)
        if result is not None:
            self._results[job.job_id] = result

    def _request_group_if_needed(self, job_id: str) -> bool:
        """Return whether the job must wait for a group; also when it has already asked.

        Then the end of another member releases it.
        """
        job = self.jobs[job_id]
        run = self.runs[job.run_id]
        if job.reason is Reason.CONCURRENCY_GROUP:
            return job.group_key is not None or (run.group_key is not None and not run.group_acquired)
        return self.request_group(job_id)

    def request_group(self, job_id: str) -> bool:
        """Let an otherwise ready job ask for its concurrency group. False: it needs none.

        It asks first for its run's group, unless the run holds it, then for its own.
        """
        job = self.jobs[job_id]
        run = self.runs[job.run_id]
        group = job.group_key if run.group_key is None or run.group_acquired else run.group_key
        if group is None:
            return False
        self._groups[group] = None
        if job.reason is not Reason.CONCURRENCY_GROUP:
            self._record_move(replace(job, reason=Reason.CONCURRENCY_GROUP, sequence=job.sequence + 1))
        return True

    # -- runs -----------------------------------------------------------------------------------------------------

    def settle(self, run_ids: Iterable[str]) -> None:
        """Release or skip jobs whose needs have ended, and update their runs' states."""
        by_run: dict[str, list[Job]] = {run_id: [] for run_id in run_ids}
        for job in self.jobs.values():
            if job.run_id in by_run:
                by_run[job.run_id].append(job)
        for run_id, jobs in by_run.items():
            states = [job.state for job in jobs]
            if _BLOCKED in states:
                self._unblock(jobs)
                states = [self.jobs[job.job_id].state for job in jobs]
            new = run_state(states)
            if self.runs[run_id].state is not new:
                reason, detail = self._superseded_reason(run_id) if new is _RUN_CANCELLED else (None, "")
                self.move_run(run_id, new, reason=reason, detail=detail, jobs=states)

    def _unblock(self, jobs: Sequence[Job]) -> None:
        """Move the run's jobs whose needs have ended."""
        ids = {job.name: job.job_id for job in jobs}
        nodes = {
            job.name: DependencyNode(
                state=job.state,
                needs=tuple(json.loads(job.needs)),
                condition=JobCondition(job.condition),
                later=job.later,
            )
            for job in jobs
        }
        for unblocked in unblock(nodes, unmet_by_results):
            job_id = ids[unblocked.name]
            if unblocked.state is JobState.WAITING and self._request_group_if_needed(job_id):
                continue
            # It needs no job, and waited for a concurrency group.
            met = unblocked.reason is Reason.NEEDS_MET and not nodes[unblocked.name].needs
            reason = Reason.PLANNED if met else unblocked.reason
            self.move(self.jobs[job_id], unblocked.state, reason, storable(unblocked.detail))

    def _superseded_reason(self, run_id: str) -> tuple[Reason | None, str]:
        """Return SUPERSEDED when all the run's cancelled jobs ended for it, else no reason."""
        cancelled = [job for job in self.jobs_of(run_id) if job.state is JobState.CANCELLED]
        if all(job.reason is Reason.SUPERSEDED for job in cancelled):
            return Reason.SUPERSEDED, cancelled[0].detail
        return None, ""

    def move_run(
        self,
        run_id: str,
        new: RunState,
        *,
        reason: Reason | None = None,
        detail: str = "",
        jobs: Collection[JobState] = (),
    ) -> None:
        """Move a run to `new`, with a status.

        A run that ends because our budget was spent also becomes a dead letter.
        """
        run = self.runs[run_id]
        started_at = self.now if run.started_at is None and new is _RUN_RUNS else run.started_at
        final = new.final
        run = replace(
            run,
            state=new,
            detail=detail,
            sequence=run.sequence + 1,
            started_at=started_at,
            finished_at=self.now if final else None,
            plan_worker=None,
            plan_since=None,
        )
        self.runs[run_id] = run
        self._changed_runs[run_id] = None
        if final and run.group_key is not None:
            self._groups[run.group_key] = None
        self._moves.append(RunMoved(run, reason, jobs))
        if new is _RUN_ERRORED:
            self._add_dead_letter(run, reason, detail)

    def change_run(self, run_id: str, **columns: Any) -> None:
        """Set columns that no status shows."""
        self.runs[run_id] = replace(self.runs[run_id], **columns)
        self._changed_runs[run_id] = None

    def add_ref_run(self, ref_run: RefRun) -> None:
        """Add the planned run to those of its branch or change request."""
        self._ref_runs.append(ref_run)

    # -- statuses and dead letters ---------------------------------------------------------------------------------

    def _record_move(self, job: Job) -> None:
        """Keep the changed job, and record it for a status."""
        self.jobs[job.job_id] = job
        self._changed_jobs[job.job_id] = None
        self._moves.append(job)

    def _statuses(self) -> Sequence[Status]:
        if not self._moves:
            return ()
        for moved in self._moves:
            run_id = moved.run_id
            if run_id not in self._subjects:
                self.subject(self.runs[run_id])
        return statuses(self.moment, self._subjects, self._moves, self._reported, self._results)

    def subject(self, run: Run) -> Status:
        """Return what all statuses about the run have in common."""
        status = self._subjects.get(run.run_id)
        if status is None:
            status = self._subjects[run.run_id] = status_about(
                read_subject(run.request), run_id=run.run_id, sampler=self.moment.rules.sampler
            )
        return status

    def _add_dead_letter(self, run: Run, reason: Reason | None, detail: str) -> None:
        """Make the request a dead letter with its history, after an infrastructure failure."""
        tries = [
            (job.name, attempt)
            for job in self.jobs_of(run.run_id)
            if job.state is JobState.ERRORED
            for attempt in (*self._past, *self._ended)
            if attempt.job_id == job.job_id
        ]
        error_headers = dead_letter_headers(tries, reason, detail)
        if error_headers is not None:
            headers = {
                **error_headers,
                RUN_HEADER: run.run_id,
                REFUSED_AT_HEADER: self.moment.stamp,
            }
            self._dead_letters.append(
                RequestDeadLetter(self.subject(run).request_id, run.request, json.dumps(headers))
            )
