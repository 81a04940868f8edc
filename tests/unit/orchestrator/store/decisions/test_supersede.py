"""The runs and jobs that newer ones supersede, in the rows of the store."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Concurrency, GroupMode, Reason, RunSpec
from solstice_orchestrator.store.decisions.supersede import (
    REMEMBERED,
    GroupMemberRow,
    RefHistory,
    group_digest,
    members,
    place_run,
    ref_digest,
    runs_concerned,
    runs_to_load,
    settle,
    supersede,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.changes import Job, RefRun, Run
from solstice_orchestrator.store.records.rows import encode_concurrency, encode_spec
from solstice_orchestrator.superseding.groups import GroupMember, GroupScope
from solstice_orchestrator.superseding.policy import SupersedeRule
from solstice_orchestrator.superseding.push_order import OrderQuestion, PushOrder
from solstice_orchestrator.superseding.seniority import Seniority
from tests.builders import job, job_request, moment, run_of_one_job

NOW = 1_800_000_000.0
TOPIC = "refs/heads/topic"
DEPLOY = Concurrency(group="deploy", mode=GroupMode.QUEUE)
CANCEL = Concurrency(group="deploy", mode=GroupMode.CANCEL)
RULES = moment(NOW).rules


def run(run_id: str, *, state: RunState = RunState.RUNNING, seconds: int = 0, **request: Any) -> Run:
    """A run of a branch, requested so many seconds after midnight."""
    given_request = job_request(
        **{
            "ref": TOPIC,
            "commit_sha": run_id[0] * 40,
            "submitted_at": f"2026-03-01T00:00:{seconds:02}Z",
            **request,
        }
    )
    return replace(
        run_of_one_job(1).run,
        run_id=run_id,
        state=state,
        created_at=NOW,
        request=given_request.encode(),
        job_count=1,
    )


def job_of(run_id: str, state: JobState = JobState.RUNNING, **changes: Any) -> Job:
    made = {"job_id": f"{run_id}-job", "run_id": run_id, "state": state, "reason": Reason.PLANNED}
    return replace(run_of_one_job(1).job, **{**made, **changes})


def unit_of(
    *runs: Run, jobs: list[Job] | None = None, rule: SupersedeRule = SupersedeRule.RUNNING
) -> UnitOfWork:
    made = [job_of(each.run_id) for each in runs] if jobs is None else jobs
    return UnitOfWork(moment(NOW, supersede=rule), runs, made)


def ref_run(run_id: str, lead: int = 0, **changes: Any) -> RefRun:
    made = RefRun(run_id, b"topic", None, False, run_id[0] * 40, None, 1.0, lead)
    return made._replace(**changes)


# -- groups ----------------------------------------------------------------------------------------------------------


def row(
    run_id: str,
    job_id: str | None = None,
    *,
    holds: bool = False,
    running: bool = False,
    concurrency: Concurrency = DEPLOY,
    seconds: int = 0,
    position: int = 0,
) -> GroupMemberRow:
    spec: str | bytes = (
        json.dumps(encode_concurrency(concurrency))
        if job_id is None
        else encode_spec(job("x", concurrency=concurrency))
    )
    request = run(run_id, seconds=seconds).request
    return GroupMemberRow(job_id, run_id, position, holds, running, spec, NOW, request)


def test_rows_become_members_of_a_group() -> None:
    as_run, as_job = members(
        [row("a1", holds=True, running=True), row("b2", "j", concurrency=CANCEL, seconds=5, position=3)]
    )
    midnight = 1_772_323_200.0
    assert as_run == GroupMember(
        holder="a1",
        run_id="a1",
        seniority=Seniority(requested_at=midnight, age=0xA1),
        position=0,
        mode=GroupMode.QUEUE,
        holds=True,
        running=True,
    )
    assert (as_job.holder, as_job.run_id, as_job.position, as_job.mode) == ("j", "b2", 3, GroupMode.CANCEL)
    assert (as_job.holds, as_job.running) == (False, False)
    assert as_job.seniority == Seniority(requested_at=midnight + 5, age=0xB2)


def test_a_member_without_a_group_is_a_mistake() -> None:
    with pytest.raises(LookupError, match="a1"):
        members([row("a1")._replace(spec_json="null")])


def test_groups_of_runs_and_jobs_are_apart() -> None:
    request = job_request()
    digests = {group_digest(RULES, scope, DEPLOY, request) for scope in GroupScope}
    assert len(digests) == 2
    assert group_digest(RULES, GroupScope.RUN, None, request) is None
    assert ref_digest(job_request(event="rerun")) is None
    assert ref_digest(job_request(ref=TOPIC)) != ref_digest(job_request())


def test_only_runs_that_change_are_loaded_for_a_group() -> None:
    queue = [row("a1", holds=True), row("b2"), row("c3")]
    assert runs_concerned(queue) == []
    assert runs_concerned(queue[1:]) == ["b2"]
    newer = row("d4", "j4", concurrency=CANCEL, seconds=9)
    assert runs_concerned([*queue, newer]) == ["a1", "b2", "c3", "d4"]


def test_the_next_run_gets_the_group_and_its_jobs_may_start() -> None:
    blocked = job_of("b2", JobState.BLOCKED, reason=Reason.CONCURRENCY_GROUP)
    own = replace(blocked, job_id="own", name="own", group_key=b"g")
    needs = replace(blocked, job_id="needs", name="needs", reason=Reason.PLANNED, needs='["own"]')
    waits = replace(run("b2", state=RunState.WAITING), group_key=b"r")
    unit = unit_of(waits, jobs=[blocked, own, needs])
    settle(unit, [row("b2")])
    assert unit.runs["b2"].group_acquired
    assert [(each.state, each.reason) for each in unit.jobs.values()] == [
        (JobState.WAITING, Reason.PLANNED),
        (JobState.BLOCKED, Reason.CONCURRENCY_GROUP),
        (JobState.BLOCKED, Reason.PLANNED),
    ]
    assert unit.changes().groups == [b"g"]


@pytest.mark.parametrize(("needs", "reason"), [("[]", Reason.PLANNED), ('["x"]', Reason.NEEDS_MET)])
def test_the_next_job_gets_the_group_and_may_start(needs: str, reason: Reason) -> None:
    blocked = job_of("b2", JobState.BLOCKED, reason=Reason.CONCURRENCY_GROUP, needs=needs, group_key=b"g")
    unit = unit_of(run("b2", state=RunState.RUNNING), jobs=[blocked])
    settle(unit, [row("b2", blocked.job_id)])
    assert (unit.jobs[blocked.job_id].state, unit.jobs[blocked.job_id].reason) == (JobState.WAITING, reason)
    assert unit.runs["b2"].state is RunState.WAITING


def test_a_newer_member_ends_older_runs_and_jobs() -> None:
    waits = job_of("b2", JobState.BLOCKED, group_key=b"g", reason=Reason.CONCURRENCY_GROUP)
    unit = unit_of(run("a1"), run("b2"), jobs=[job_of("a1"), waits])
    rows = [
        row("a1", holds=True, running=True),
        row("b2", waits.job_id),
        row("c3", concurrency=CANCEL, seconds=9),
    ]
    settle(unit, rows)
    of_run, of_job = unit.jobs["a1-job"], unit.jobs["b2-job"]
    assert (of_run.cancel_requested, of_run.ending, of_run.ending_detail) == (
        True,
        "superseded",
        "superseded by c3",
    )
    assert (of_job.state, of_job.reason, of_job.detail) == (
        JobState.CANCELLED,
        Reason.SUPERSEDED,
        "superseded by c3",
    )
    assert unit.runs["b2"].state is RunState.CANCELLED


def test_members_that_ended_since_they_were_read_are_left_alone() -> None:
    ended = unit_of(run("b2", state=RunState.SUCCEEDED), jobs=[job_of("b2", JobState.SUCCEEDED)])
    settle(ended, [row("b2")])
    settle(ended, [row("b2", "b2-job")])
    settle(ended, [row("b2", "b2-job"), row("c3", concurrency=CANCEL, seconds=9)])
    settle(ended, [row("a1", "unknown"), row("c3", concurrency=CANCEL, seconds=9)])
    changes = ended.changes()
    assert not changes.runs
    assert not changes.jobs


# -- branches --------------------------------------------------------------------------------------------------------


def test_the_newest_of_a_branch_leads_and_is_never_forgotten() -> None:
    open_runs, past = [ref_run("a1"), ref_run("b2", 3)], [ref_run("c3", 2), ref_run("d4")]
    assert RefHistory(open_runs, past).newest == open_runs[1]
    assert RefHistory([ref_run("a1")], [ref_run("d4")]).newest is None
    many = [ref_run(f"{number:x}") for number in range(REMEMBERED + 2)]
    assert RefHistory((), many).forgettable == [each.run_id for each in many[REMEMBERED:]]
    led = [*many[:-1], many[-1]._replace(lead=1)]
    assert RefHistory((), led).forgettable == [many[REMEMBERED].run_id]


@pytest.mark.parametrize("approval", [{"needs_approval": True}, {"approves": True}])
def test_a_run_that_a_person_approves_looks_at_all_others(approval: dict[str, bool]) -> None:
    request = job_request(trusted=False, **approval)
    assert runs_to_load(request, [ref_run("a1")], SupersedeRule.OFF, requested=None) == [ref_run("a1")]


def placed(
    own: Run, history: RefHistory, *others: Run, rule: SupersedeRule = SupersedeRule.RUNNING, **given: Any
) -> RefRun | OrderQuestion | None:
    unit = unit_of(own, *others, rule=rule)
    placement = {"rerun": False, "answers": None, **given}
    return place_run(unit, own, RunSpec(supersede=True), history, **placement)


def test_the_first_run_of_a_branch_leads_it() -> None:
    own = run("b2", before_sha="a" * 40, seconds=7)
    request = job_request(ref=TOPIC)
    digest = ref_digest(request)
    assert digest is not None
    assert placed(own, RefHistory()) == RefRun(
        "b2", digest, True, False, "b" * 40, "a" * 40, 1_772_323_207.0, 1
    )


def test_a_rerun_and_what_belongs_to_no_branch_lead_nothing() -> None:
    again = placed(run("b2"), RefHistory([ref_run("a1", 1)]), rerun=True)
    assert isinstance(again, RefRun)
    assert (again.rerun, again.lead) == (True, 0)
    assert placed(run("b2", ref="refs/tags/v1"), RefHistory()) is None


@pytest.mark.parametrize(
    ("before_sha", "newest", "lead"),
    [("a" * 40, ref_run("a1", 4), 5), (None, ref_run("a1", 4, before_sha="b" * 40), 0)],
    ids=["after the newest", "before it"],
)
def test_a_push_is_placed_by_the_links_between_deliveries(
    before_sha: str | None, newest: RefRun, lead: int
) -> None:
    found = placed(run("b2", before_sha=before_sha), RefHistory([newest]))
    assert isinstance(found, RefRun)
    assert found.lead == lead


def test_git_is_asked_only_where_the_answer_ends_a_run() -> None:
    history = RefHistory([ref_run("a1", 4)])
    own = run("b2")
    question = placed(own, history, run("a1"), answers={})
    assert question == OrderQuestion(commit_sha="b" * 40, before_sha=None, newest_sha="a" * 40)
    for answer, lead in ((PushOrder.NEWER, 5), (PushOrder.OLDER, 0)):
        found = placed(own, history, run("a1"), answers={question: answer})
        assert isinstance(found, RefRun)
        assert found.lead == lead
    assert isinstance(placed(own, history, run("a1"), answers={}, rule=SupersedeRule.OFF), RefRun)


@pytest.mark.parametrize(
    ("rule", "state", "ended"),
    [
        (SupersedeRule.RUNNING, RunState.RUNNING, True),
        (SupersedeRule.WAITING, RunState.RUNNING, False),
        (SupersedeRule.OFF, RunState.WAITING, False),
    ],
)
def test_a_newer_run_ends_the_older_ones_that_the_rule_names(
    rule: SupersedeRule, state: RunState, *, ended: bool
) -> None:
    jobs = [job_of("a1", JobState.RUNNING if state is RunState.RUNNING else JobState.WAITING), job_of("b2")]
    unit = unit_of(run("a1", state=state), run("b2", seconds=5), jobs=jobs, rule=rule)
    supersede(unit, ref_run("b2", 2), RefHistory([ref_run("a1", 1)]))
    older = unit.jobs["a1-job"]
    assert (older.ending_detail == "superseded by b2") is ended
    assert not unit.jobs["b2-job"].cancel_requested


def test_a_run_that_is_not_the_newest_is_ended_by_it_also_when_that_has_ended() -> None:
    unit = unit_of(run("b2"), run("c3"))
    supersede(unit, ref_run("b2"), RefHistory([ref_run("c3")], [ref_run("a1", 3)]))
    assert unit.jobs["b2-job"].ending_detail == "superseded by a1"
    # What was open before was looked at when the newest was planned.
    assert not unit.jobs["c3-job"].cancel_requested
    alone = unit_of(run("b2"))
    supersede(alone, ref_run("b2"), RefHistory())
    assert not alone.changes().jobs


def test_runs_that_ended_or_were_not_loaded_are_left_alone() -> None:
    unit = unit_of(run("a1", state=RunState.FAILED), run("b2"))
    supersede(unit, ref_run("b2", 2), RefHistory([ref_run("a1"), ref_run("9f")]))
    assert not unit.changes().jobs


@pytest.mark.parametrize(
    ("approves", "state", "ended"),
    [(True, JobState.APPROVAL, True), (None, JobState.APPROVAL, False), (True, JobState.WAITING, False)],
    ids=["approved", "not approved", "waits for nothing"],
)
def test_what_only_waits_for_an_approval_makes_way_for_the_approved(
    approves: bool | None, state: JobState, *, ended: bool
) -> None:
    of_change: dict[str, Any] = {
        "change_number": 7,
        "event": "pull_request",
        "commit_sha": "a" * 40,
        "trusted": False,
    }
    older = run("a1", state=RunState.WAITING, needs_approval=True, **of_change)
    unit = unit_of(
        older,
        run("b2", seconds=5, approves=approves, **of_change),
        jobs=[job_of("a1", state), job_of("b2")],
        rule=SupersedeRule.OFF,
    )
    same_commit = {"commit_sha": "a" * 40}
    supersede(unit, ref_run("b2", 2, **same_commit), RefHistory([ref_run("a1", 1, **same_commit)]))
    assert (unit.runs["a1"].state is RunState.CANCELLED) is ended


# -- loading
# ----------------------------------------------------------------------------------------------------


def related_run(*supersede_flags: bool | None) -> list[RefRun]:
    return [
        RefRun(str(number), b"branch", each, False, "c", None, 0.0)
        for number, each in enumerate(supersede_flags)
    ]


@pytest.mark.parametrize(
    ("ref", "requested", "known", "rule", "expected"),
    [
        ("refs/heads/topic", None, related_run(None, False), SupersedeRule.RUNNING, 2),
        ("refs/heads/topic", None, related_run(None, False), SupersedeRule.OFF, 0),
        ("refs/heads/main", None, related_run(*[None] * 1000), SupersedeRule.RUNNING, 0),
        ("refs/heads/main", True, related_run(None, None), SupersedeRule.WAITING, 2),
        ("refs/heads/main", None, related_run(None, True), SupersedeRule.WAITING, 2),
        ("refs/heads/main", True, related_run(True), SupersedeRule.OFF, 0),
    ],
    ids=["branch", "off", "default branch", "it asks", "another asked", "asked in vain"],
)
def test_questions_are_asked_where_a_run_may_be_superseded(
    ref: str, requested: bool | None, known: list[RefRun], rule: SupersedeRule, expected: int
) -> None:
    assert len(runs_to_load(job_request(ref=ref), known, rule, requested=requested)) == expected
