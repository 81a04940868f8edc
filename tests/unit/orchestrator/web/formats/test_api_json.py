"""Views as API v1 JSON: fixed names, RFC 3339 times, states as words."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.demand import Demand
from solstice_orchestrator.queue_times.forecast import Forecast
from solstice_orchestrator.queue_times.waits import Holder, WaitExplanation, WaitReason
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.workers import Presence, WorkerJob, WorkerState, WorkerView
from solstice_orchestrator.store.schedule_store import ScheduleView, TickView
from solstice_orchestrator.store.views import AttemptView, ChunkKind, JobView, LogChunk, RunView
from solstice_orchestrator.web.formats import api_json
from solstice_orchestrator.web.formats.log_text import LogGap

NOON = 1_769_860_800.0
"""2026-01-31, twelve o'clock in UTC."""


def clock(minutes: int) -> str:
    """How the API writes so many minutes after noon."""
    return f"2026-01-31T12:{minutes:02}:00.000Z"


RUN = RunView(
    run_id="r",
    request_id="q",
    state=RunState.RUNNING,
    detail="",
    source="forgejo",
    repo_url="https://forge.example/harbour/lighthouse.git",
    repo_full_name="harbour/lighthouse",
    commit_sha="a" * 40,
    ref="refs/heads/main",
    event="push",
    change_number=7,
    sender="mira",
    created_at=NOON,
    started_at=NOON + 60,
    finished_at=None,
    rerun_of=None,
    not_before=NOON + 120,
)
JOB = JobView(
    job_id="j",
    run_id="r",
    name="build",
    state=JobState.BACKOFF,
    reason=Reason.PLANNED,
    detail="",
    runs_on="linux",
    needs=("lint", "docs"),
    priority=Priority.HIGH,
    attempt=1,
    created_at=NOON,
    started_at=NOON + 60,
    finished_at=None,
    retry_at=NOON + 180,
    exit_code=3,
    step="make",
    worker_id=None,
)
ATTEMPT = AttemptView(
    number=1,
    worker_id="w",
    state=JobState.FAILED,
    reason=Reason.STEP_FAILED,
    started_at=NOON,
    finished_at=NOON + 60,
    exit_code=3,
    step="make",
    detail="",
)
WORKER = WorkerView(
    worker_id="w-1",
    name="w",
    host="north",
    version="1",
    slots={"linux": 2},
    limit=2,
    presence=Presence.ALIVE,
    state=WorkerState.QUARANTINED,
    quarantined_until=NOON + 60,
    failures_in_a_row=3,
    started_at=NOON,
    seen_at=NOON,
    jobs=(WorkerJob(job_id="j", name="build", runs_on="linux", attempt=1, started_at=NOON),),
    refuses=Resource.DISK,
)
TICK = TickView(
    tick_at=NOON,
    first_at=None,
    count=1,
    by_hand=False,
    state=TickState.FIRED,
    reason=TickReason.ON_TIME,
    detail="",
    failures=0,
    retry_at=None,
    settled_at=NOON + 60,
    run_id="r",
    run_state=RunState.WAITING,
    commit_sha=None,
)
SCHEDULE = ScheduleView(
    schedule_id="s",
    name="nightly",
    repo_url="https://forge.example/harbour/lighthouse.git",
    repo_full_name=None,
    branch="main",
    cron="0 3 * * *",
    timezone="UTC",
    missed=Missed.ONCE,
    overlap=Overlap.SKIP,
    workflow_path=None,
    workflow_job_id=None,
    runs_on=None,
    priority=Priority.LOW,
    paused=False,
    created_by="mira",
    created_at=NOON,
    changed_at=NOON,
    next_at=NOON + 120,
    last=TICK,
)
DEMAND = Demand(
    waiting=4,
    running=1,
    slots=2,
    wanted_slots=3,
    expected_work_seconds=12.34567,
    oldest_wait_seconds=0.0004,
    delayed=0,
    samples=9,
    held_back={"blocked": 2},
)


def test_a_run_is_shown_with_its_jobs() -> None:
    shown = api_json.run_document(RUN, [JOB])
    assert shown["jobs"] == [api_json.document(JOB)]
    assert shown | {"jobs": []} == api_json.run_document(RUN, [])
    assert (shown["state"], shown["change_number"], shown["rerun_of"]) == ("running", 7, None)
    times = ("created_at", "started_at", "finished_at", "not_before")
    assert [shown[name] for name in times] == [clock(0), clock(1), None, clock(2)]


def test_a_job_is_shown_with_its_attempts() -> None:
    shown = api_json.job_document(JOB, [ATTEMPT], [], {"version": "1.2"})
    assert (shown["artifacts"], shown["outputs"]) == ([], {"version": "1.2"})
    assert (shown["state"], shown["reason"], shown["priority"]) == ("backoff", "planned", "high")
    assert (shown["needs"], shown["exit_code"], shown["retry_at"]) == (["lint", "docs"], 3, clock(3))
    (attempt,) = shown["attempts"]
    assert attempt == api_json.document(ATTEMPT)
    assert (attempt["state"], attempt["finished_at"]) == ("failed", clock(1))


def test_a_worker_is_shown_with_its_slots_and_jobs() -> None:
    shown = api_json.worker_document(WORKER)
    assert (shown["name"], shown["slots"], shown["refuses"]) == ("w", {"linux": 2}, "disk")
    assert (shown["state"], shown["quarantined_until"]) == ("quarantined", clock(1))
    assert shown["jobs"] == [
        {"job_id": "j", "name": "build", "runs_on": "linux", "attempt": 1, "started_at": clock(0)}
    ]


def test_a_schedule_is_shown_with_its_last_tick_if_there_was_one() -> None:
    shown = api_json.schedule_document(SCHEDULE)
    assert (shown["name"], shown["missed"], shown["next_at"]) == ("nightly", "once", clock(2))
    assert shown["last"] == api_json.tick_document(TICK)
    assert (shown["last"]["tick_at"], shown["last"]["run_state"]) == (clock(0), "waiting")
    never = replace(SCHEDULE, last=None)
    assert api_json.schedule_document(never) == shown | {"last": None}


def test_a_wait_is_explained_with_holders_and_the_expected_start() -> None:
    why = WaitExplanation(
        reason=WaitReason.SLOTS_BUSY,
        detail="the slots are busy",
        since=NOON,
        ahead=2,
        until=NOON + 60,
        resource="label",
        holders=(Holder(run_id="r", job_id="j", name="build", started_at=NOON),),
        expected_start=Forecast(earliest=NOON + 60, latest=NOON + 120),
    )
    assert api_json.why_document(why) == {
        "reason": "slots_busy",
        "detail": "the slots are busy",
        "since": clock(0),
        "ahead": 2,
        "resource": "label",
        "until": clock(1),
        "holders": [
            {
                "run_id": "r",
                "job_id": "j",
                "name": "build",
                "repository": "",
                "worker_id": None,
                "started_at": clock(0),
            }
        ],
        "expected_start": {"earliest": clock(1), "latest": clock(2)},
    }


def test_what_is_not_known_of_a_wait_is_null() -> None:
    shown = api_json.why_document(WaitExplanation(reason=WaitReason.APPROVAL, detail="", since=NOON))
    assert (shown["ahead"], shown["resource"], shown["until"], shown["expected_start"]) == (None,) * 4
    assert shown["holders"] == []


def test_demand_is_shown_of_all_labels_and_of_each_to_the_millisecond() -> None:
    one = {
        "waiting": 4,
        "running": 1,
        "slots": 2,
        "wanted_slots": 3,
        "expected_work_seconds": 12.346,
        "oldest_wait_seconds": 0.0,
        "delayed": 0,
        "samples": 9,
        "held_back": {"blocked": 2},
    }
    assert api_json.scale_document(NOON, 300.0, DEMAND, {"linux": DEMAND}) == {
        "at": clock(0),
        "target_seconds": 300.0,
        **one,
        "labels": {"linux": one},
    }


def test_a_log_is_shown_as_chunks_and_gaps() -> None:
    chunk = LogChunk(sequence=4, at=NOON, data=b"x", kind=ChunkKind.MARK)
    assert api_json.chunk_document(chunk, "text") == {
        "sequence": 4,
        "at": clock(0),
        "kind": "mark",
        "text": "text",
    }
    assert api_json.gap_document(LogGap(first=2, last=3)) == {"first": 2, "last": 3}


@pytest.mark.parametrize(
    "shown",
    [
        api_json.run_document(RUN, [JOB]),
        api_json.job_document(JOB, [ATTEMPT], [], {"version": "1.2"}),
        api_json.worker_document(WORKER),
        api_json.schedule_document(SCHEDULE),
        api_json.scale_document(NOON, 300.0, DEMAND, {"linux": DEMAND}),
    ],
    ids=["run", "job", "worker", "schedule", "scale"],
)
def test_all_that_is_shown_is_plain_json(shown: dict[str, Any]) -> None:
    assert orjson.loads(orjson.dumps(shown, option=orjson.OPT_PASSTHROUGH_SUBCLASS)) == shown
