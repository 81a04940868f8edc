"""How rows of workers change, and what readers see of them."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.quarantine import HealthRecord, QuarantineCause
from solstice_orchestrator.scheduling.workers import (
    DesiredWorkerState,
    DrainOrder,
    OrderRefusal,
    Presence,
    QuarantineOrder,
    WorkerEligibility,
    WorkerJob,
    WorkerRegistration,
    WorkerState,
)
from solstice_orchestrator.store.decisions.worker_records import (
    WorkerRow,
    after_ends,
    counted_failures,
    forgotten_with,
    healthy_ends,
    registered,
    steered,
    worker_view,
)
from solstice_orchestrator.store.records.changes import Attempt
from tests.builders import run_of_one_job

NOW = 1000.0
LEASE = 60.0
CAUSE = QuarantineCause("river/otter", "test", "j-1")
ROW = WorkerRow(
    worker_id="w-1",
    name="w",
    host="quay",
    version="1",
    slots='{"linux": 2}',
    slot_limit=3,
    ordered=DesiredWorkerState.WORK,
    failures=2,
    quarantined_until=NOW + 10,
    started_at=100.0,
    seen_at=NOW,
    ended_at=None,
    shrunk_to=1,
    refuses="disk",
    refusal="no space",
    condition_at=990.0,
    causes=json.dumps([CAUSE]),
)
REGISTRATION = WorkerRegistration(
    worker_id="w-2", name="w", host="quay", version="2", capacity=Capacity(slots={"linux": 4}, limit=5)
)


def attempt(worker_id: str, reason: Reason, state: JobState = JobState.ERRORED) -> Attempt:
    return Attempt("j-1", 1, worker_id, state, reason, 1.0, 2.0, None, None, "")


def test_what_a_row_says_of_eligibility_is_read_and_written() -> None:
    record = HealthRecord(failures=2, quarantined_until=NOW + 10, causes=(CAUSE,))
    assert ROW.eligibility == WorkerEligibility(ordered=DesiredWorkerState.WORK, record=record)
    paused = WorkerEligibility(
        ordered=DesiredWorkerState.PAUSE, record=HealthRecord(failures=1, causes=(CAUSE,))
    )
    changed = ROW.with_eligibility(paused)
    assert changed.eligibility == paused
    assert changed._replace(ordered=ROW.ordered, failures=2, quarantined_until=NOW + 10) == ROW


def test_a_worker_that_registers_has_what_it_reports() -> None:
    row = registered(REGISTRATION, None, [], NOW)
    assert row == WorkerRow(
        "w-2", "w", "quay", "2", '{"linux": 4}', 5, DesiredWorkerState.WORK, 0, None, NOW, NOW, None
    )


def test_a_worker_that_just_registered_lacks_nothing_and_has_no_past() -> None:
    view = worker_view(registered(REGISTRATION, None, [], NOW), [], NOW, LEASE)
    assert (view.state, view.failures_in_a_row, view.refusal) == (WorkerState.ACTIVE, 0, "")
    assert (view.quarantined_until, view.shrunk_to, view.refuses, view.condition_at) == (None,) * 4


def test_a_worker_that_registers_again_keeps_its_start_and_its_eligibility() -> None:
    known = ROW._replace(worker_id="w-2", ordered=DesiredWorkerState.DRAIN)
    row = registered(REGISTRATION, known, [ROW._replace(failures=9)], NOW)
    assert (row.started_at, row.seen_at) == (100.0, NOW)
    assert row.eligibility == known.eligibility


def test_a_new_process_inherits_from_the_last_one_of_its_name() -> None:
    older = ROW._replace(worker_id="a", seen_at=NOW - 5, failures=7)
    same_time = ROW._replace(worker_id="b", started_at=99.0, failures=8)
    drained = ROW._replace(ordered=DesiredWorkerState.DRAIN)
    row = registered(REGISTRATION, None, [older, drained, same_time], NOW)
    assert (row.failures, row.causes, row.quarantined_until) == (2, ROW.causes, NOW + 10)
    assert (row.ordered, row.started_at) == (DesiredWorkerState.WORK, NOW)


def test_an_order_changes_the_row_or_is_refused() -> None:
    quarantined = steered(ROW, QuarantineOrder(seconds=50.0), NOW, LEASE)
    assert quarantined == ROW._replace(quarantined_until=NOW + 50)
    assert steered(ROW._replace(ended_at=NOW), DrainOrder(), NOW, LEASE) is OrderRefusal.IS_GONE


def test_only_namesakes_that_are_gone_are_forgotten() -> None:
    namesakes = [
        ROW._replace(worker_id="alive"),
        ROW._replace(worker_id="lost", seen_at=NOW - LEASE),
        ROW._replace(worker_id="ended", ended_at=NOW),
    ]
    assert forgotten_with(namesakes, NOW, LEASE) == ["lost", "ended"]


def test_ends_clear_a_workers_failures_or_add_to_them_or_say_nothing() -> None:
    attempts = [
        attempt("good", Reason.RELEASED, JobState.WAITING),
        attempt("good", Reason.COMPLETED, JobState.SUCCEEDED),
        attempt("failing", Reason.STEP_FAILED, JobState.FAILED),
        attempt("mixed", Reason.COMPLETED, JobState.SUCCEEDED),
        attempt("mixed", Reason.PROVISION_FAILED),
        attempt("silent", Reason.AGENT_LOST),
        attempt("bad", Reason.EXECUTOR_FAILED),
    ]
    assert healthy_ends(attempts) == ["good", "failing"]
    assert counted_failures(attempts) == {"mixed": attempts[3:5], "bad": [attempts[6]]}


def test_ends_are_counted_in_their_order_by_the_jobs_that_caused_them() -> None:
    job = replace(run_of_one_job(1).job, job_id="j-1", name="build")
    row = ROW._replace(failures=0, quarantined_until=None, causes="[]", ordered=DesiredWorkerState.PAUSE)
    once = after_ends(row, [attempt("w-1", Reason.PROVISION_FAILED)], [job], NOW)
    assert (once.failures, once.ordered) == (1, DesiredWorkerState.PAUSE)
    assert once.eligibility.record.causes == (QuarantineCause("river/otter", "build", "j-1"),)
    ends = [attempt("w-1", Reason.COMPLETED, JobState.SUCCEEDED), attempt("w-1", Reason.MACHINE_FAILED)]
    assert after_ends(once, ends, [job], NOW).failures == 1
    assert after_ends(once, ends[::-1], [job], NOW).failures == 0


def test_a_worker_is_shown_with_all_that_its_row_says() -> None:
    jobs = [WorkerJob(job_id="j", name="test", runs_on="linux", attempt=1, started_at=1.0)]
    view = worker_view(ROW, jobs, NOW, LEASE)
    assert (view.worker_id, view.name, view.host, view.version) == ("w-1", "w", "quay", "1")
    assert (dict(view.slots), view.limit, view.jobs) == ({"linux": 2}, 3, tuple(jobs))
    assert (view.presence, view.state, view.quarantined_until) == (
        Presence.ALIVE,
        WorkerState.QUARANTINED,
        NOW + 10,
    )
    assert (view.failures_in_a_row, view.started_at, view.seen_at) == (2, 100.0, NOW)
    assert (view.shrunk_to, view.refuses, view.refusal, view.condition_at) == (
        1,
        Resource.DISK,
        "no space",
        990.0,
    )


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"name": ""}, {"name": "w-1"}),
        ({"quarantined_until": NOW}, {"quarantined_until": None, "state": WorkerState.ACTIVE}),
        ({"seen_at": NOW - LEASE}, {"presence": Presence.LOST}),
        ({"refuses": None}, {"refuses": None}),
    ],
    ids=["never registered", "quarantine over", "lost", "lacks nothing"],
)
def test_what_is_over_or_unknown_is_not_shown(changes: dict[str, Any], shown: dict[str, Any]) -> None:
    view = worker_view(ROW._replace(**changes), [], NOW, LEASE)
    assert {name: getattr(view, name) for name in shown} == shown
