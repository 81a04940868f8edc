"""Who makes way for whom: concurrency groups and superseded runs, as the store's rows have them. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from solstice_common.messages import JobRequestV1, stored_request
from solstice_common.messages.states import JobState
from solstice_common.times import parse_timestamp
from solstice_orchestrator.domain.jobs import Concurrency, Reason, RunSpec
from solstice_orchestrator.domain.seniority import Seniority, seniority
from solstice_orchestrator.domain.trust import awaits_approval, is_vouched_for
from solstice_orchestrator.store.decisions.steer import end_job, end_run
from solstice_orchestrator.store.decisions.transitions import Ledger
from solstice_orchestrator.store.records.changes import Kin, Run
from solstice_orchestrator.store.records.moment import Rules
from solstice_orchestrator.store.records.rows import decode_concurrency, key, request_fields
from solstice_orchestrator.superseding.groups import Member, Scope, group_key, settle_group
from solstice_orchestrator.superseding.policy import (
    Newest,
    Sibling,
    Supersede,
    lineage,
    may_be_ended,
    on_default_branch,
    superseded,
)
from solstice_orchestrator.superseding.push_order import Answers, Order, Push, Question, compare

REMEMBERED: Final = 64
"""So many ended runs of a branch are remembered for what their pushes tell of each other."""
REMEMBERED_SECONDS: Final = 30 * 86_400.0
"""And at least for so long, whenever the runs themselves are removed: no forge sends a delivery again after more."""


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


def group_of(
    rules: Rules, scope: Scope, concurrency: Concurrency | None, request: JobRequestV1
) -> bytes | None:
    """The digest that stands for a concurrency group; None for none."""
    if concurrency is None:
        return None
    return key(group_key(scope, request, concurrency.group, rules.v1_trust))


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


class Lineage(NamedTuple):
    """What a store remembers of a branch or change request."""

    kin: Sequence[Kin] = ()
    """Planned runs that have not ended."""
    past: Sequence[Kin] = ()
    """Those that have, and perhaps were removed since, the newest first."""

    @property
    def newest(self) -> Kin | None:
        """Whose place nobody has taken."""
        return max((each for each in (*self.kin, *self.past) if each.lead), key=_lead, default=None)

    @property
    def forgettable(self) -> Sequence[str]:
        """Ids of runs that nobody needs to remember any more."""
        return [each.run_id for each in self.past[REMEMBERED:] if each is not self.newest]


def _lead(kin: Kin) -> int:
    return kin.lead


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


def placed(
    ledger: Ledger, run: Run, said: RunSpec, known: Lineage, *, rerun: bool, answers: Answers | None
) -> Kin | Question | None:
    """The run as one of its lineage, and in its place there; None: it has no lineage.

    A Question has to be answered first, when somebody's end depends on it. Nothing is changed.
    """
    request = stored_request(run.request)
    lineage = lineage_of(request)
    if lineage is None:
        return None
    own = Kin(
        run.run_id,
        lineage,
        said.supersede,
        rerun,
        request.commit_sha,
        request.before_sha,
        _seniority(run.run_id, run.request, run.created_at).asked_at,
    )
    newest = known.newest
    if rerun or newest is None:
        # Whoever asked for a run again takes nobody's place.
        return own if rerun else own._replace(lead=1)
    rule = ledger.moment.rules.supersede
    matters = rule is not Supersede.OFF and (
        any(each.run_id in ledger.runs for each in known.kin)
        or may_be_ended(_sibling(own, run, ledger), rule)
    )
    pushes = [_push(each) for each in (*known.kin, *known.past)]
    order = compare(_push(own), _push(newest), pushes, answers if matters else None)
    if isinstance(order, Question):
        return order
    return own._replace(lead=newest.lead + 1) if order is Order.NEWER else own


def supersede(ledger: Ledger, own: Kin, known: Lineage) -> None:
    """End the runs of one lineage whose place a newer one takes, after `own` joined it.

    Those that may be ended are in the ledger, with all their jobs.
    """
    newest = own if own.lead else known.newest
    if newest is None:
        return
    run = ledger.runs.get(newest.run_id)
    # What has ended has taken its place when it was planned, but for what is planned only now.
    kin = [own, *known.kin] if run is not None else [own]
    siblings = [
        _sibling(each, ledger.runs[each.run_id], ledger)
        for each in kin
        if each.run_id in ledger.runs and not ledger.runs[each.run_id].state.final
    ]
    told = Newest(
        run_id=newest.run_id,
        seniority=_push(newest).seniority,
        commit_sha=newest.commit_sha,
        approves=run is not None and stored_request(run.request).approves is True,
    )
    for run_id, by in superseded(siblings, told, ledger.moment.rules.supersede).items():
        end_run(ledger, run_id, Reason.SUPERSEDED, f"superseded by {by}")


def _push(kin: Kin) -> Push:
    return Push(
        run_id=kin.run_id,
        commit_sha=kin.commit_sha,
        before_sha=kin.before_sha,
        seniority=Seniority(asked_at=kin.asked_at, age=_age(kin.run_id)),
    )


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
    request = stored_request(run.request)
    awaiting = awaits_approval(request) and any(
        job.state is JobState.APPROVAL for job in ledger.jobs_of(run.run_id)
    )
    return Sibling(
        run_id=run.run_id,
        seniority=_seniority(run.run_id, run.request, run.created_at),
        state=run.state,
        commit_sha=request.commit_sha,
        on_default_branch=on_default_branch(request),
        asked=kin.supersede,
        rerun=kin.rerun,
        awaiting=awaiting,
    )


def _seniority(run_id: str, request: bytes, created_at: float) -> Seniority:
    submitted_at = parse_timestamp(request_fields(request)["submitted_at"]).timestamp()
    return seniority(submitted_at, created_at, _age(run_id))


def _age(run_id: str) -> int:
    """Ids grow with time."""
    return int(run_id.replace("-", ""), 16)


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
        ledger.move(job, JobState.WAITING, reason)
        ledger.settle([job.run_id])
