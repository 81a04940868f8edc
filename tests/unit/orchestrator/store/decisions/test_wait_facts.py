"""The facts about a waiting job, from its rows."""

import json
from typing import Any

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Concurrency, GroupMode, Reason
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.queue_times.waits import Holder, OwnerStartsOfHour, UnmetNeed, WaitFacts
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import ClaimExclusions
from solstice_orchestrator.scheduling.quotas import OwnerStarts, Quotas
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope
from solstice_orchestrator.scheduling.starts import StartBudget, StartLimits
from solstice_orchestrator.store.decisions.supersede import GroupMemberRow
from solstice_orchestrator.store.decisions.wait_facts import (
    ahead_of,
    exclusions_for,
    group_of,
    holder_of,
    job_facts,
    needs_of,
    owner_starts_of_hour,
    planning_facts,
    samples_of,
    throttle_keys,
)
from solstice_orchestrator.store.records.rows import encode_concurrency, encode_spec
from tests.builders import job, job_request

NOW = 1000.0
RUN: dict[str, Any] = {
    "run_id": "a1",
    "repository": "river/otter",
    "state": "planning",
    "created_at": 900.0,
    "plan_worker": None,
    "plan_at": NOW + 5,
    "detail": "no route",
    "group_key": b"r",
    "group_acquired": False,
}
JOB: dict[str, Any] = {
    "run_id": "a1",
    "job_id": "j",
    "name": "test",
    "state": "waiting",
    "reason": "planned",
    "repository": "river/otter",
    "owner": "river",
    "runs_on": "linux",
    "created_at": 900.0,
    "waiting_since": 950.0,
    "started_at": 960.0,
    "retry_at": NOW + 5,
    "provisioning_since": NOW - 3,
    "detail": "x",
    "group_key": b"g",
    "needs": '["a", "b", "c"]',
    "worker_id": "w",
}


@pytest.mark.parametrize(
    ("changes", "not_before", "until"),
    [
        ({}, None, NOW + 5),
        ({"state": RunState.DELAYED.value}, NOW + 5, None),
        ({"plan_at": NOW}, None, None),
        ({"plan_worker": "w"}, None, None),
    ],
    ids=["tried again", "delayed", "due", "being planned"],
)
def test_a_run_without_jobs_waits_for_its_start_or_another_try(
    changes: dict[str, Any], not_before: float | None, until: float | None
) -> None:
    facts = planning_facts(RUN | changes, NOW, ())
    assert (facts.not_before, facts.until) == (not_before, until)
    assert (facts.now, facts.run_id, facts.state, facts.since) == (NOW, "a1", None, 900.0)
    assert (facts.repository, facts.detail) == ("river/otter", "no route")


def test_a_job_waits_since_it_last_began_to() -> None:
    facts = job_facts(JOB, NOW)
    assert facts == WaitFacts(
        now=NOW,
        run_id="a1",
        job_id="j",
        name="test",
        state=JobState.WAITING,
        reason=Reason.PLANNED,
        repository="river/otter",
        owner="river",
        runs_on="linux",
        since=950.0,
        detail="x",
    )
    assert job_facts(JOB | {"waiting_since": None}, NOW).since == 900.0


def test_only_a_running_job_has_begun_and_only_a_backoff_has_an_end() -> None:
    running, backoff = (job_facts(JOB | {"state": state}, NOW) for state in ("running", "backoff"))
    assert (running.started_at, running.until, running.provisioning_since) == (960.0, None, NOW - 3)
    assert (backoff.started_at, backoff.until, backoff.provisioning_since) == (None, NOW + 5, None)


@pytest.mark.parametrize(
    ("run", "job_row", "group"),
    [
        ({}, {}, (b"r", "a1")),
        ({"group_acquired": True}, {"reason": "concurrency_group"}, (b"g", "j")),
        ({"group_acquired": True}, {}, None),
        ({"group_key": None}, {"reason": "concurrency_group"}, (b"g", "j")),
        ({"group_key": None}, {"reason": "concurrency_group", "group_key": None}, None),
    ],
    ids=["its run's", "its own", "not yet its own", "without one of its run", "none"],
)
def test_a_blocked_job_waits_for_the_group_of_its_run_or_its_own(
    run: dict[str, Any], job_row: dict[str, Any], group: tuple[bytes, str] | None
) -> None:
    assert group_of(JOB | job_row, RUN | run) == group


def test_those_ahead_in_a_group_are_named() -> None:
    request = job_request(submitted_at="1970-01-01T00:00:00Z").encode()
    deploy = Concurrency(group="deploy", mode=GroupMode.QUEUE)
    of_job = encode_spec(job("x", name="ship", concurrency=deploy))
    of_run = json.dumps(encode_concurrency(deploy))

    def row(job_id: str | None, run_id: str, spec: str | bytes, *, holds: bool) -> GroupMemberRow:
        return GroupMemberRow(job_id, run_id, 0, holds, False, spec, 0.0, request)

    rows = [
        row("j1", "a1", of_job, holds=True),
        row("j2", "a2", of_job, holds=False),
        row(None, "a3", of_run, holds=False),
    ]
    assert ahead_of(rows, "a3", "river/otter") == (
        "deploy",
        [
            Holder(run_id="a1", job_id="j1", name="ship", repository="river/otter"),
            Holder(run_id="a2", job_id="j2", name="ship", repository="river/otter"),
        ],
    )
    assert ahead_of(rows[2:], "a3", "river/otter") == ("deploy", [])
    assert ahead_of([rows[2], row("j4", "a4", of_job, holds=False)], "j4", "x")[1] == [
        Holder(run_id="a3", name="", repository="x")
    ]
    assert ahead_of(rows, "unknown", "river/otter") == ("", [])


def test_needs_that_have_not_ended_are_named() -> None:
    siblings = [
        {"job_id": name, "name": name, "state": state}
        for name, state in (("a", "running"), ("b", "succeeded"), ("c", "blocked"), ("d", "running"))
    ]
    assert needs_of(JOB, siblings) == [
        UnmetNeed(job_id="a", name="a", state=JobState.RUNNING),
        UnmetNeed(job_id="c", name="c", state=JobState.BLOCKED),
    ]


def test_running_and_ended_jobs_are_read() -> None:
    assert holder_of(JOB) == Holder(
        run_id="a1", job_id="j", name="test", repository="river/otter", worker_id="w", started_at=960.0
    )
    rows = [{"repository": "river/otter", "seconds": seconds} for seconds in (2.5, -1.0)]
    assert samples_of(rows) == [
        Sample(repository="river/otter", seconds=2.5),
        Sample(repository="river/otter", seconds=0.0),
    ]


def test_a_start_takes_from_the_buckets_of_its_label_and_repository() -> None:
    assert throttle_keys(job_facts(JOB, NOW)) == (
        BucketKey(BucketScope.LABEL, "linux"),
        BucketKey(BucketScope.REPOSITORY, "river/otter"),
    )


def test_jobs_of_others_at_their_cap_or_quota_delay_none() -> None:
    limits = StartLimits(caps=Caps(default=1), quotas=Quotas(slots=Caps(default=1)))
    full = StartBudget(limits=limits, running={"river/otter": 1, "delta/wader": 1})
    assert exclusions_for(full, job_facts(JOB, NOW)) == ClaimExclusions(
        repositories=frozenset({"delta/wader"}), owners=frozenset({"delta"})
    )


def test_an_owner_with_an_hourly_quota_has_its_used_starts_in_the_facts() -> None:
    used = [OwnerStarts(until=NOW + 5, starts=3)]
    limits = StartLimits(quotas=Quotas(starts_per_hour=Caps(of={"river": 9, "delta": 2})))
    budget = StartBudget(limits=limits, started={"river": used})
    assert owner_starts_of_hour(budget, "river") == OwnerStartsOfHour(quota=9, started=used)
    assert owner_starts_of_hour(budget, "delta") == OwnerStartsOfHour(quota=2, started=())
    assert owner_starts_of_hour(budget, "elsewhere") is None
    everybody = StartBudget(limits=StartLimits(quotas=Quotas(starts_per_hour=Caps(default=1))))
    assert owner_starts_of_hour(everybody, "") is None
