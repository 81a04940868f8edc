"""Plans runs: they get their jobs, wait for approval or another try, or end. Pure."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from solstice_common.messages import stored_request
from solstice_common.messages.states import JobState, RunState
from solstice_common.values.quantities import quantity
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, JobSpec, Reason, RunSpec
from solstice_orchestrator.domain.reruns import NOT_A_RERUN, RerunScope, selected_jobs
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.domain.trust import awaits_approval
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.scheduling.quotas import owner_of
from solstice_orchestrator.store.decisions.supersede import RefHistory, group_digest, place_run, supersede
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.rows import decode_concurrency, encode_concurrency, encode_spec
from solstice_orchestrator.superseding.groups import GroupScope
from solstice_orchestrator.superseding.push_order import OrderAnswers, OrderQuestion

NO_HISTORY: Final = RefHistory()
BEGUN_AT_ONCE: Final = 256
"""How many delayed runs one transaction begins; the next transaction begins the rest."""


DecidePlan = Callable[[UnitOfWork, RefHistory, RerunScope], bool | OrderQuestion]
"""Decides about a planned run, given the remembered runs of its ref."""


def planned(
    unit: UnitOfWork,
    task: PlanningTask,
    jobs: Sequence[JobSpec],
    run_spec: RunSpec,
    history: RefHistory = NO_HISTORY,
    *,
    rerun_scope: RerunScope = NOT_A_RERUN,
    answers: OrderAnswers | None = None,
) -> bool | OrderQuestion:
    """Give the run its jobs and its limits, and supersede older runs of its ref.

    The run itself is superseded when a newer push came first. `history`: the remembered runs of its ref;
    those that may be ended are in the unit of work. A Question changes nothing. Raises ValueError when two
    jobs share a name, or a need does not exist.
    """
    _check(task, jobs)
    run = _current(unit, task)
    if run is None:
        return False
    own = place_run(unit, run, run_spec, history, rerun=rerun_scope.requested, answers=answers)
    if isinstance(own, OrderQuestion):
        return own
    awaiting, rules = awaits_approval(task.request), unit.moment.rules
    jobs = selected_jobs(jobs, rerun_scope.only)
    states = [_first_state(spec, run_spec, awaiting=awaiting) for spec in jobs]
    unit.change_run(
        task.run_id,
        job_count=len(jobs),
        timeout_at=None if run_spec.timeout_seconds is None else unit.now + run_spec.timeout_seconds,
        # A run without approval must not keep others from a group.
        group_key=None
        if awaiting
        else group_digest(rules, GroupScope.RUN, run_spec.concurrency, task.request),
        concurrency=None
        if run_spec.concurrency is None
        else json.dumps(encode_concurrency(run_spec.concurrency)),
    )
    unit.move_run(task.run_id, RunState.WAITING, jobs=states)
    for position, (spec, state) in enumerate(zip(jobs, states, strict=True)):
        unit.add(
            Job(
                state=state,
                reason=_first_reason(spec, state),
                detail=storable(spec.unmet),
                finished_at=unit.now if state.final else None,
                job_id=unit.moment.new_id(),
                run_id=task.run_id,
                position=position,
                name=spec.name,
                runs_on=spec.runs_on,
                priority=rank(spec.priority),
                repository=run.repository,
                owner=owner_of(run.repository),
                ref=task.request.ref,
                needs=json.dumps(spec.needs),
                created_at=unit.now,
                condition=spec.condition.value,
                later=spec.later,
                retries=spec.retries,
                group_key=group_digest(rules, GroupScope.JOB, spec.concurrency, task.request),
            ),
            encode_spec(spec),
        )
    unit.settle([task.run_id])
    if own is not None:
        unit.add_ref_run(own)
        supersede(unit, own, history)
    return True


def _check(task: PlanningTask, jobs: Sequence[JobSpec]) -> None:
    """Raise ValueError when two jobs share a name, or a need does not exist."""
    names = {spec.name for spec in jobs}
    if len(names) < len(jobs) or any(need not in names for spec in jobs for need in spec.needs):
        raise ValueError(f"jobs of run {task.run_id}: names are not unique, or a need is not among them")


def _first_state(spec: JobSpec, run_spec: RunSpec, *, awaiting: bool) -> JobState:
    if spec.unmet:
        return JobState.SKIPPED
    if awaiting:
        return JobState.APPROVAL
    is_blocked = spec.needs or spec.later or spec.concurrency or run_spec.concurrency
    return JobState.BLOCKED if is_blocked else JobState.WAITING


def _first_reason(spec: JobSpec, state: JobState) -> Reason:
    if spec.unmet:
        return Reason.CONDITION_UNMET
    return (
        Reason.PLANNED
        if spec.needs or spec.later or state is not JobState.BLOCKED
        else Reason.CONCURRENCY_GROUP
    )


def approve_run(unit: UnitOfWork, run_id: str) -> None:
    """Release the run's jobs that wait for approval; other runs stay unchanged."""
    waiting = [job for job in unit.jobs_of(run_id) if job.state is JobState.APPROVAL]
    if not waiting:
        return
    run = unit.runs[run_id]
    unit.change_run(run_id, **_approved_columns(unit, run, waiting[0]))
    for job in waiting:
        is_blocked = (
            job.needs != "[]" or job.later or job.group_key is not None or run.concurrency is not None
        )
        unit.move(job, JobState.BLOCKED if is_blocked else JobState.WAITING, Reason.APPROVED)
    unit.settle([run_id])


def _approved_columns(unit: UnitOfWork, run: Run, job: Job) -> dict[str, Any]:
    """Return what approval gives the run: its time limit, and the group it asks for."""
    columns: dict[str, Any] = {}
    if run.timeout_at is not None:
        columns["timeout_at"] = run.timeout_at + unit.now - job.created_at
    if run.concurrency is not None:
        concurrency = decode_concurrency(json.loads(run.concurrency))
        columns["group_key"] = group_digest(
            unit.moment.rules, GroupScope.RUN, concurrency, stored_request(run.request)
        )
    return columns


def begin(unit: UnitOfWork) -> None:
    """Move these delayed runs to PLANNING when their time has come."""
    for run in list(unit.runs.values()):
        if run.state is RunState.DELAYED and run.plan_at <= unit.now:
            unit.move_run(run.run_id, RunState.PLANNING)


def not_planned(unit: UnitOfWork, task: PlanningTask, reason: Reason, detail: str) -> bool:
    """Release the run, let it wait for another try, or end it."""
    if _current(unit, task) is None:
        return False
    detail = storable(detail)
    if reason is Reason.RELEASED:
        unit.change_run(task.run_id, plan_worker=None, plan_since=None)
    elif reason is Reason.MACHINE_FAILED:
        # The worker pauses itself; another one may plan the run now.
        unit.change_run(task.run_id, plan_worker=None, plan_since=None, detail=detail)
    elif reason is Reason.HOST_AWAY:
        rules, tries = unit.moment.rules, unit.runs[task.run_id].plan_attempt
        later = unit.now + rules.retries.default.uncounted_wait(tries, rules.rng)
        unit.change_run(task.run_id, plan_worker=None, plan_since=None, plan_at=later, detail=detail)
    elif reason in INFRASTRUCTURE:
        plan_failed(unit, task.run_id, reason, detail)
    else:
        state = RunState.SKIPPED if reason is Reason.EVENT_NOT_BUILT else RunState.ERRORED
        unit.move_run(task.run_id, state, reason=reason, detail=detail)
    return True


def plan_failed(unit: UnitOfWork, run_id: str, reason: Reason, detail: str) -> None:
    """Plan the run again later, or end it when its budget is spent."""
    failures, rules = unit.runs[run_id].plan_failures + 1, unit.moment.rules
    wait = rules.retries.default.next_retry(failures, reason, rules.rng)
    if wait is None:
        words = f"its workflow could not be read, {quantity(failures, 'time')}: {detail or reason.value}"
        unit.change_run(run_id, plan_failures=failures)
        unit.move_run(run_id, RunState.ERRORED, reason=reason, detail=words)
    else:
        unit.change_run(
            run_id,
            plan_worker=None,
            plan_since=None,
            plan_failures=failures,
            plan_at=unit.now + wait,
            detail=detail,
        )


def _current(unit: UnitOfWork, task: PlanningTask) -> Run | None:
    run = unit.runs.get(task.run_id)
    if run is None or run.state is not RunState.PLANNING or run.plan_worker is None:
        return None
    return run if run.plan_attempt == task.attempt else None
