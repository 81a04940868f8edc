"""Runs are planned: they get their jobs, wait for another try, or end. Pure."""

import json
from collections.abc import Sequence
from typing import Final

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, JobSpec, Reason, RunSpec
from solstice_orchestrator.domain.reruns import FIRST, Again, cut_down
from solstice_orchestrator.domain.retries import next_retry, uncounted_wait
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.domain.trust import awaits_approval
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.scheduling.quotas import owner_of
from solstice_orchestrator.store.decisions.supersede import Lineage, group_of, placed, supersede
from solstice_orchestrator.store.decisions.transitions import Ledger
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.rows import encode_concurrency, encode_spec
from solstice_orchestrator.superseding.groups import Scope
from solstice_orchestrator.superseding.push_order import Answers, Question

NO_LINEAGE: Final = Lineage()
BEGUN_AT_ONCE: Final = 256
"""So many delayed runs begin in one transaction; when more are due, the next one goes on."""


def check(task: PlanningTask, jobs: Sequence[JobSpec]) -> None:
    """ValueError when two jobs have one name, or one needs what is not there."""
    names = {spec.name for spec in jobs}
    if len(names) < len(jobs) or any(need not in names for spec in jobs for need in spec.needs):
        raise ValueError(f"jobs of run {task.run_id}: names are not unique, or a need is not among them")


def planned(
    ledger: Ledger,
    task: PlanningTask,
    jobs: Sequence[JobSpec],
    said: RunSpec,
    known: Lineage = NO_LINEAGE,
    *,
    again: Again = FIRST,
    answers: Answers | None = None,
) -> bool | Question:
    """Give the run its jobs and its limits; end those of its lineage, or the run itself, whose place a newer one takes.

    `known`: what is remembered of its lineage; those of it that may be ended are in the ledger. A Question changes
    nothing.
    """
    run = _current(ledger, task)
    if run is None:
        return False
    own = placed(ledger, run, said, known, rerun=again.asked, answers=answers)
    if isinstance(own, Question):
        return own
    awaiting, rules = awaits_approval(task.request), ledger.moment.rules
    jobs = cut_down(jobs, again.only)
    states = [_first_state(spec, said, awaiting=awaiting) for spec in jobs]
    ledger.change_run(
        task.run_id,
        job_count=len(jobs),
        timeout_at=None if said.timeout_seconds is None else ledger.now + said.timeout_seconds,
        # What nobody has agreed to keeps nobody else from a group.
        group_key=None if awaiting else group_of(rules, Scope.RUN, said.concurrency, task.request),
        concurrency=None if said.concurrency is None else json.dumps(encode_concurrency(said.concurrency)),
    )
    ledger.move_run(task.run_id, RunState.WAITING, jobs=states)
    for position, (spec, state) in enumerate(zip(jobs, states, strict=True)):
        ledger.add(
            Job(
                state=state,
                reason=Reason.PLANNED
                if spec.needs or state is not JobState.BLOCKED
                else Reason.CONCURRENCY_GROUP,
                job_id=ledger.moment.new_id(),
                run_id=task.run_id,
                position=position,
                name=spec.name,
                runs_on=spec.runs_on,
                priority=rank(spec.priority),
                repository=run.repository,
                owner=owner_of(run.repository),
                ref=task.request.ref,
                needs=json.dumps(spec.needs),
                created_at=ledger.now,
                condition=spec.condition.value,
                retries=spec.retries,
                group_key=group_of(rules, Scope.JOB, spec.concurrency, task.request),
            ),
            encode_spec(spec),
        )
    ledger.settle([task.run_id])
    if own is not None:
        ledger.join(own)
        supersede(ledger, own, known)
    return True


def _first_state(spec: JobSpec, said: RunSpec, *, awaiting: bool) -> JobState:
    if awaiting:
        return JobState.APPROVAL
    held_up = spec.needs or spec.concurrency or said.concurrency
    return JobState.BLOCKED if held_up else JobState.WAITING


def begin(ledger: Ledger) -> None:
    """The time of these delayed runs has come: they are to be planned like any other."""
    for run in list(ledger.runs.values()):
        if run.state is RunState.DELAYED and run.plan_at <= ledger.now:
            ledger.move_run(run.run_id, RunState.PLANNING)


def not_planned(ledger: Ledger, task: PlanningTask, reason: Reason, detail: str) -> bool:
    """The run goes back, waits for another try, or ends."""
    if _current(ledger, task) is None:
        return False
    detail = storable(detail)
    if reason is Reason.RELEASED:
        ledger.change_run(task.run_id, plan_worker=None, plan_since=None)
    elif reason is Reason.MACHINE_FAILED:
        # The worker pauses itself; another one may plan the run now.
        ledger.change_run(task.run_id, plan_worker=None, plan_since=None, detail=detail)
    elif reason is Reason.HOST_AWAY:
        rules, tries = ledger.moment.rules, ledger.runs[task.run_id].plan_attempt
        later = ledger.now + uncounted_wait(tries, rules.rng, rules.retry_base_seconds)
        ledger.change_run(task.run_id, plan_worker=None, plan_since=None, plan_at=later, detail=detail)
    elif reason in INFRASTRUCTURE:
        plan_failed(ledger, task.run_id, reason, detail)
    else:
        ledger.move_run(task.run_id, RunState.ERRORED, reason=reason, detail=detail)
    return True


def plan_failed(ledger: Ledger, run_id: str, reason: Reason, detail: str) -> None:
    """The world kept a run from being planned: later again, until the budget is spent."""
    failures, rules = ledger.runs[run_id].plan_failures + 1, ledger.moment.rules
    wait = next_retry(failures, reason, rules.rng, base_seconds=rules.retry_base_seconds)
    if wait is None:
        words = f"its workflow could not be read, {MAX_ATTEMPTS} times: {detail or reason.value}"
        ledger.change_run(run_id, plan_failures=failures)
        ledger.move_run(run_id, RunState.ERRORED, reason=reason, detail=words)
    else:
        ledger.change_run(
            run_id,
            plan_worker=None,
            plan_since=None,
            plan_failures=failures,
            plan_at=ledger.now + wait,
            detail=detail,
        )


def _current(ledger: Ledger, task: PlanningTask) -> Run | None:
    run = ledger.runs.get(task.run_id)
    if run is None or run.state is not RunState.PLANNING or run.plan_worker is None:
        return None
    return run if run.plan_attempt == task.attempt else None
