"""Who makes way for whom: concurrency groups and superseded runs, as the store's rows have them. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from solstice_common.messages import JobRequestV1, decode_request, parse_timestamp
from solstice_orchestrator.groups import Member, Scope, group_key, settle_group
from solstice_orchestrator.jobs import Concurrency, JobState, Reason
from solstice_orchestrator.seniority import Seniority, seniority
from solstice_orchestrator.store.changes import Kin, Run
from solstice_orchestrator.store.ledger import Ledger
from solstice_orchestrator.store.rows import decode_concurrency, key, request_fields
from solstice_orchestrator.store.steer import end_job, end_run
from solstice_orchestrator.supersede import Sibling, Supersede, lineage, on_default_branch, superseded
from solstice_orchestrator.trust import awaits_approval, is_vouched_for


class MemberRow(NamedTuple):
    """A run or job that holds a group or asks for it, as a store reads it; not one whose run waits for its own group."""

    job_id: str | None
    """None: the run as a whole."""
    run_id: str
    position: int
    holds: bool
    running: bool
    said: str | bytes
    """JSON: of a run its concurrency, of a job its spec."""
    created_at: float
    """Of the run."""
    request: bytes


def group_of(scope: Scope, concurrency: Concurrency | None, request: JobRequestV1) -> bytes | None:
    """The digest that stands for a concurrency group; None for none."""
    if concurrency is None:
        return None
    return key(group_key(scope, request, concurrency.group))


def lineage_of(request: JobRequestV1) -> bytes | None:
    """The digest that stands for what a newer push takes the place of; None for what it never does."""
    found = lineage(request)
    return None if found is None else key(found)


def members(rows: Iterable[MemberRow]) -> Sequence[Member]:
    """The rows as `groups.py` knows them."""
    return [_member(row) for row in rows]


def concerned(rows: Sequence[MemberRow]) -> Sequence[str]:
    """The ids of the runs about which there is something to do; `settle` wants them, with all their jobs."""
    settled = settle_group(members(rows))
    holders = {*settled.superseded, settled.let_go}
    return list(dict.fromkeys(row.run_id for row in rows if (row.job_id or row.run_id) in holders))


def settle(ledger: Ledger, rows: Sequence[MemberRow]) -> None:
    """End who is superseded in a group, and let go who is next.

    Somebody who has ended since the rows were read is left alone: that end has the group looked at once more.
    """
    settled = settle_group(members(rows))
    for holder, run_id in settled.superseded.items():
        _make_way(ledger, holder, f"superseded by {run_id}")
    if settled.let_go is not None:
        _let_go(ledger, settled.let_go)


def rivals(
    request: JobRequestV1, kin: Sequence[Kin], rule: Supersede, *, asked: bool | None
) -> Sequence[Kin]:
    """Those of a lineage that have to be loaded for `supersede` when this run joins them.

    Where nobody may be ended that is nobody: on the default branch any number of runs may be under way.
    """
    if is_vouched_for(request):
        return kin
    nobody_asked = asked is not True and not any(each.supersede for each in kin)
    if rule is Supersede.OFF or (on_default_branch(request) and nobody_asked):
        return ()
    return kin


def supersede(ledger: Ledger, kin: Sequence[Kin]) -> None:
    """End the runs of one lineage whose place a newer one takes; each is in the ledger, with all its jobs."""
    siblings = [
        _sibling(each, ledger.runs[each.run_id], ledger)
        for each in kin
        if each.run_id in ledger.runs and not ledger.runs[each.run_id].state.final
    ]
    for run_id, by in superseded(siblings, ledger.moment.rules.supersede).items():
        end_run(ledger, run_id, Reason.SUPERSEDED, f"superseded by {by}")


def _member(row: MemberRow) -> Member:
    said: Any = orjson.loads(row.said)
    concurrency = decode_concurrency(said if row.job_id is None else said["concurrency"])
    if concurrency is None:
        raise LookupError(row.run_id)
    return Member(
        holder=row.job_id or row.run_id,
        run_id=row.run_id,
        seniority=_seniority(row.run_id, row.request, row.created_at),
        position=row.position,
        mode=concurrency.mode,
        holds=row.holds,
        running=row.running,
    )


def _sibling(kin: Kin, run: Run, ledger: Ledger) -> Sibling:
    request = decode_request(run.request)
    awaiting = awaits_approval(request) and any(
        job.state is JobState.APPROVAL for job in ledger.jobs_of(run.run_id)
    )
    return Sibling(
        run_id=run.run_id,
        seniority=_seniority(run.run_id, run.request, run.created_at),
        state=run.state,
        commit_sha=request.commit_sha,
        before_sha=request.before_sha,
        on_default_branch=on_default_branch(request),
        asked=kin.supersede,
        rerun=kin.rerun,
        awaiting=awaiting,
        approves=request.approves is True,
    )


def _seniority(run_id: str, request: bytes, created_at: float) -> Seniority:
    submitted_at = parse_timestamp(request_fields(request)["submitted_at"]).timestamp()
    return seniority(submitted_at, created_at, int(run_id.replace("-", ""), 16))


def _make_way(ledger: Ledger, holder: str, detail: str) -> None:
    if holder in ledger.runs:
        end_run(ledger, holder, Reason.SUPERSEDED, detail)
        return
    job = ledger.jobs.get(holder)
    if job is not None and not job.state.final:
        end_job(ledger, job, Reason.SUPERSEDED, detail)
        ledger.settle([job.run_id])


def _let_go(ledger: Ledger, holder: str) -> None:
    run, job = ledger.runs.get(holder), ledger.jobs.get(holder)
    if run is not None and not run.state.final:
        ledger.change_run(run.run_id, group_held=True)
        for each in ledger.jobs_of(run.run_id):
            if each.state is JobState.BLOCKED and each.reason is Reason.CONCURRENCY_GROUP:
                ledger.ask(each.job_id)
        ledger.settle([run.run_id])
    elif job is not None and job.state is JobState.BLOCKED:
        reason = Reason.PLANNED if job.needs == "[]" else Reason.NEEDS_MET
        ledger.move(job.job_id, JobState.WAITING, reason)
        ledger.settle([job.run_id])
