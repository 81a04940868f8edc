"""Decides which runs and jobs make way: concurrency groups and superseded runs. Pure.

It works on the rows of the store.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from solstice_common.messages import JobRequestV1, stored_request
from solstice_common.messages.states import JobState
from solstice_common.values.times import parse_timestamp
from solstice_orchestrator.domain.jobs import Concurrency, Reason, RunSpec
from solstice_orchestrator.domain.trust import awaits_approval, is_vouched_for, on_default_branch
from solstice_orchestrator.store.decisions.steer import end_job, end_run
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.changes import RefRun, Run
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.records.rows import decode_concurrency, key, request_fields
from solstice_orchestrator.superseding.groups import GroupMember, GroupScope, group_key, settle_group
from solstice_orchestrator.superseding.policy import (
    NewestPush,
    SupersedeRule,
    UnfinishedRun,
    may_be_ended,
    supersede_key,
    superseded,
)
from solstice_orchestrator.superseding.push_order import (
    OrderAnswers,
    OrderQuestion,
    Push,
    PushOrder,
    push_order,
)
from solstice_orchestrator.superseding.seniority import Seniority, seniority

REMEMBERED: Final = 64
"""How many ended runs of a branch are kept, because their pushes help to order newer ones."""
REMEMBERED_SECONDS: Final = 30 * 86_400.0
"""Ended runs are kept at least this long, even after the runs are removed: no forge repeats a delivery later than
that.
"""


class GroupMemberRow(NamedTuple):
    """The stored row of a run or job that holds or wants a group.

    A job whose run waits for the run's own group is not among them.
    """

    job_id: str | None
    """None for the run as a whole."""
    run_id: str
    position: int
    holds: bool
    running: bool
    spec_json: str | bytes
    """JSON: the concurrency of a run, or the spec of a job."""
    created_at: float
    """Of the run."""
    request: bytes


def group_digest(
    rules: StoreRules, scope: GroupScope, concurrency: Concurrency | None, request: JobRequestV1
) -> bytes | None:
    """Return the digest that identifies a concurrency group; None for no group."""
    if concurrency is None:
        return None
    return key(group_key(scope, request, concurrency.group, rules.v1_trust))


def ref_digest(request: JobRequestV1) -> bytes | None:
    """Return the digest of what a newer push supersedes; None for no such ref."""
    ref_key = supersede_key(request)
    return None if ref_key is None else key(ref_key)


def members(rows: Iterable[GroupMemberRow]) -> Sequence[GroupMember]:
    """Return the rows as the members that `groups.py` knows."""
    return [_member(row) for row in rows]


def runs_concerned(rows: Sequence[GroupMemberRow]) -> Sequence[str]:
    """Return the ids of the runs that `settle` changes; it needs all their jobs."""
    settled = settle_group(members(rows))
    holders = {*settled.superseded, settled.new_holder}
    return list(dict.fromkeys(row.run_id for row in rows if (row.job_id or row.run_id) in holders))


def settle(unit: UnitOfWork, rows: Sequence[GroupMemberRow]) -> None:
    """End the superseded members of a group, and give the group to the next.

    A member that ended after the rows were read is left alone: its end settles the group again.
    """
    settled = settle_group(members(rows))
    for holder, run_id in settled.superseded.items():
        _cancel_superseded(unit, holder, f"superseded by {run_id}")
    if settled.new_holder is not None:
        _give_group(unit, settled.new_holder)


class RefHistory(NamedTuple):
    """What a store remembers about the runs of a branch or change request."""

    open_runs: Sequence[RefRun] = ()
    """Planned runs that have not ended."""
    past: Sequence[RefRun] = ()
    """Planned runs that have ended, perhaps removed since, newest first."""

    @property
    def newest(self) -> RefRun | None:
        """The run that no newer push has superseded."""
        return max((each for each in (*self.open_runs, *self.past) if each.lead), key=_lead, default=None)

    @property
    def forgettable(self) -> Sequence[str]:
        """Ids of runs that no longer need to be remembered."""
        return [each.run_id for each in self.past[REMEMBERED:] if each is not self.newest]


def _lead(ref_run: RefRun) -> int:
    return ref_run.lead


def runs_to_load(
    request: JobRequestV1, open_runs: Sequence[RefRun], rule: SupersedeRule, *, requested: bool | None
) -> Sequence[RefRun]:
    """Return the runs of a ref to load for `supersede` when this run joins.

    Empty when no run may be ended: on the default branch any number of runs may be under way.
    """
    if is_vouched_for(request):
        return open_runs
    unrequested = requested is not True and not any(each.supersede for each in open_runs)
    if rule is SupersedeRule.OFF or (on_default_branch(request) and unrequested):
        return ()
    return open_runs


def place_run(
    unit: UnitOfWork,
    run: Run,
    run_spec: RunSpec,
    history: RefHistory,
    *,
    rerun: bool,
    answers: OrderAnswers | None,
) -> RefRun | OrderQuestion | None:
    """Return the run with its place among those of its ref.

    None: no newer push supersedes it. An OrderQuestion: its answer decides which run is superseded; nothing is changed.
    """
    request = stored_request(run.request)
    digest = ref_digest(request)
    if digest is None:
        return None
    own = RefRun(
        run.run_id,
        digest,
        run_spec.supersede,
        rerun,
        request.commit_sha,
        request.before_sha,
        _seniority(run.run_id, run.request, run.created_at).requested_at,
    )
    newest = history.newest
    if rerun or newest is None:
        # A rerun takes no other run's place.
        return own if rerun else own._replace(lead=1)
    rule = unit.moment.rules.supersede
    matters = rule is not SupersedeRule.OFF and (
        any(each.run_id in unit.runs for each in history.open_runs)
        or may_be_ended(_unfinished_run(own, run, unit), rule)
    )
    known = (*history.open_runs, *history.past)
    order = push_order(_push(own), _push(newest), known, answers if matters else None)
    if isinstance(order, OrderQuestion):
        return order
    return own._replace(lead=newest.lead + 1) if order is PushOrder.NEWER else own


def supersede(unit: UnitOfWork, own: RefRun, history: RefHistory) -> None:
    """End the runs of one ref that a newer one supersedes, after `own` joined it.

    Those that may be ended are in the unit of work, with all their jobs.
    """
    newest = own if own.lead else history.newest
    if newest is None:
        return
    run = unit.runs.get(newest.run_id)
    # An ended run superseded others when it was planned; only a run planned now still needs to be checked against it.
    open_runs = [own, *history.open_runs] if run is not None else [own]
    unfinished = [
        _unfinished_run(each, unit.runs[each.run_id], unit)
        for each in open_runs
        if each.run_id in unit.runs and not unit.runs[each.run_id].state.final
    ]
    newest_push = NewestPush(
        run_id=newest.run_id,
        seniority=_push(newest).seniority,
        commit_sha=newest.commit_sha,
        approves=run is not None and stored_request(run.request).approves is True,
    )
    for run_id, by in superseded(unfinished, newest_push, unit.moment.rules.supersede).items():
        end_run(unit, run_id, Reason.SUPERSEDED, f"superseded by {by}")


def _push(ref_run: RefRun) -> Push:
    return Push(
        run_id=ref_run.run_id,
        commit_sha=ref_run.commit_sha,
        before_sha=ref_run.before_sha,
        seniority=Seniority(requested_at=ref_run.requested_at, age=_age(ref_run.run_id)),
    )


def _member(row: GroupMemberRow) -> GroupMember:
    spec_json: Any = orjson.loads(row.spec_json)
    concurrency = decode_concurrency(spec_json if row.job_id is None else spec_json["concurrency"])
    if concurrency is None:
        raise LookupError(row.run_id)
    return GroupMember(
        holder=row.job_id or row.run_id,
        run_id=row.run_id,
        seniority=_seniority(row.run_id, row.request, row.created_at),
        position=row.position,
        mode=concurrency.mode,
        holds=row.holds,
        running=row.running,
    )


def _unfinished_run(ref_run: RefRun, run: Run, unit: UnitOfWork) -> UnfinishedRun:
    request = stored_request(run.request)
    awaiting = awaits_approval(request) and any(
        job.state is JobState.APPROVAL for job in unit.jobs_of(run.run_id)
    )
    return UnfinishedRun(
        run_id=run.run_id,
        seniority=_seniority(run.run_id, run.request, run.created_at),
        state=run.state,
        commit_sha=request.commit_sha,
        on_default_branch=on_default_branch(request),
        supersede=ref_run.supersede,
        rerun=ref_run.rerun,
        awaiting=awaiting,
    )


def _seniority(run_id: str, request: bytes, created_at: float) -> Seniority:
    submitted_at = parse_timestamp(request_fields(request)["submitted_at"]).timestamp()
    return seniority(submitted_at, created_at, _age(run_id))


def _age(run_id: str) -> int:
    """Return the run's age rank: ids grow with time."""
    return int(run_id.replace("-", ""), 16)


def _cancel_superseded(unit: UnitOfWork, holder: str, detail: str) -> None:
    if holder in unit.runs:
        end_run(unit, holder, Reason.SUPERSEDED, detail)
        return
    job = unit.jobs.get(holder)
    if job is not None and not job.state.final:
        end_job(unit, job, Reason.SUPERSEDED, detail)
        unit.settle([job.run_id])


def _give_group(unit: UnitOfWork, holder: str) -> None:
    run, job = unit.runs.get(holder), unit.jobs.get(holder)
    if run is not None and not run.state.final:
        unit.change_run(run.run_id, group_acquired=True)
        for each in unit.jobs_of(run.run_id):
            if each.state is JobState.BLOCKED and each.reason is Reason.CONCURRENCY_GROUP:
                unit.request_group(each.job_id)
        unit.settle([run.run_id])
    elif job is not None and job.state is JobState.BLOCKED:
        reason = Reason.PLANNED if job.needs == "[]" else Reason.NEEDS_MET
        unit.move(job, JobState.WAITING, reason)
        unit.settle([job.run_id])
