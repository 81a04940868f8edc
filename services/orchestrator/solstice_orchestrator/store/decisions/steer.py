"""Jobs and runs are steered from outside: by people, by newer runs, by the time limit of their run. Pure."""

import json
from dataclasses import replace

from msgspec import structs

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain import reruns
from solstice_orchestrator.domain.jobs import Condition, Outcome, Reason
from solstice_orchestrator.domain.needs import Node
from solstice_orchestrator.domain.reruns import NotRerun
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.decisions.transitions import Ledger
from solstice_orchestrator.store.records.changes import Job


def cancel_job(ledger: Ledger, job_id: str, detail: str = "") -> None:
    """End one job, or ask its holder to; the detail says who asked."""
    job = ledger.jobs.get(job_id)
    if job is not None and not job.state.final:
        end_job(ledger, job, Reason.CANCEL_REQUESTED, detail)
        ledger.settle([job.run_id])


def prioritise(ledger: Ledger, job_id: str, priority: Priority) -> None:
    """Put a job that has not ended into another class, where it is a newcomer."""
    job = ledger.jobs.get(job_id)
    if job is not None and not job.state.final and job.priority != rank(priority):
        ledger.change_class(job_id, rank(priority))


def chosen_of(ledger: Ledger, run_id: str, job_id: str | None) -> frozenset[str] | NotRerun | None:
    """What of a run is to run again: what failed of it, or this job and what belongs to it (`reruns`)."""
    if not ledger.runs[run_id].state.final:
        return NotRerun.NOT_ENDED
    jobs = ledger.jobs_of(run_id)
    nodes = {
        job.name: Node(
            state=job.state, needs=tuple(json.loads(job.needs)), condition=Condition(job.condition)
        )
        for job in jobs
    }
    if job_id is None:
        return reruns.failed_of(nodes)
    return reruns.around(next(job.name for job in jobs if job.job_id == job_id), nodes)


def cancel_run(ledger: Ledger, run_id: str, detail: str = "") -> None:
    """End every job of a run, or its planning; likewise."""
    end_run(ledger, run_id, Reason.CANCEL_REQUESTED, detail)


def time_out(ledger: Ledger) -> None:
    """End what is left of the runs that are out of time."""
    for run in list(ledger.runs.values()):
        if run.timeout_at is not None and run.timeout_at <= ledger.now and not _awaits(ledger, run.run_id):
            end_run(ledger, run.run_id, Reason.RUN_TIMEOUT)
            # What runs of it has been asked, and nothing begins any more: this is done.
            ledger.change_run(run.run_id, timeout_at=None)


def _awaits(ledger: Ledger, run_id: str) -> bool:
    """Its time begins when somebody agrees to it."""
    return any(job.state is JobState.APPROVAL for job in ledger.jobs_of(run_id))


def end_run(ledger: Ledger, run_id: str, reason: Reason, detail: str = "") -> None:
    """End a run for CANCEL_REQUESTED, SUPERSEDED or RUN_TIMEOUT: its planning, or every job that has not ended."""
    run = ledger.runs.get(run_id)
    if run is None or run.state.final:
        return
    if run.state in {RunState.DELAYED, RunState.PLANNING}:
        ledger.move_run(run_id, RunState(_end_of(reason).value), reason=reason, detail=detail)
        return
    for job in ledger.jobs_of(run_id):
        if not job.state.final:
            end_job(ledger, job, reason, detail)
    ledger.settle([run_id])


def end_job(ledger: Ledger, job: Job, reason: Reason, detail: str = "") -> None:
    """End a job that has not ended, or ask its holder to; the first who asks is the one who counts. Its run is not settled."""
    if job.state is not JobState.RUNNING:
        ledger.move(structs.replace(job, retry_at=None), _end_of(reason), reason, detail)
    elif not job.cancel_asked:
        ledger.change(job.job_id, cancel_asked=True, ending=reason.value, ending_detail=storable(detail))


def as_asked(job: Job | None, outcome: Outcome) -> Outcome:
    """`outcome`, but for the reason for which the attempt's end was asked for, if that is why it ended."""
    if job is None or not job.cancel_asked or outcome.state is not JobState.CANCELLED:
        return outcome
    return asked_end(job, outcome)


def asked_end(job: Job, outcome: Outcome) -> Outcome:
    """How a job ends whose end was asked for, once its attempt is over."""
    reason = Reason(job.ending) if job.ending else Reason.CANCEL_REQUESTED
    return replace(outcome, state=_end_of(reason), reason=reason, detail=job.ending_detail)


def _end_of(reason: Reason) -> JobState:
    return JobState.TIMED_OUT if reason is Reason.RUN_TIMEOUT else JobState.CANCELLED
