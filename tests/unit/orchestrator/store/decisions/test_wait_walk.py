"""The walk that finds why a job waits asks for each load once."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Concurrency
from solstice_orchestrator.queue_times.waits import WaitFacts
from solstice_orchestrator.store.decisions import wait_walk
from solstice_orchestrator.store.decisions.supersede import GroupMemberRow
from solstice_orchestrator.store.decisions.wait_facts import MAX_JOBS_READ
from solstice_orchestrator.store.decisions.wait_walk import LoadGroup, LoadNow, LoadRows, WaitQuery
from solstice_orchestrator.store.records.rows import encode_concurrency
from tests.builders import job_request, moment

NOW = 1000.0


def row(job_id: str, state: str, needs: str = "[]") -> dict[str, Any]:
    return {
        "run_id": "a1",
        "job_id": job_id,
        "name": job_id,
        "state": state,
        "reason": "planned",
        "repository": "river/otter",
        "owner": "river",
        "runs_on": "linux",
        "created_at": 900.0,
        "waiting_since": None,
        "started_at": 960.0,
        "retry_at": None,
        "provisioning_since": None,
        "detail": "",
        "group_key": None,
        "needs": needs,
    }


def of_group(
    requested: wait_walk.Load, jobs: Mapping[str, dict[str, Any]], group: Sequence[GroupMemberRow]
) -> Sequence[Any]:
    """What is loaded about a run that waits for a group; empty for anything else."""
    match requested:
        case LoadRows(WaitQuery.RUN, _):
            return [{"run_id": "a1", "group_key": b"g", "group_acquired": False}]
        case LoadGroup(b"g"):
            return group
        case LoadRows(WaitQuery.UNFINISHED_JOBS, ("a0", int(limit))):
            return [{"job_id": job_id} for job_id in jobs if job_id != "ship"][:limit]
    return []


def facts_of(
    job_id: str, jobs: Mapping[str, dict[str, Any]], group: Sequence[GroupMemberRow] | None = None
) -> tuple[WaitFacts | None, Counter[str]]:
    """The facts about a job of these, and how often each was loaded.

    Its run waits for this group, whose other jobs are of the run a0.
    """
    loaded_jobs: Counter[str] = Counter()

    def load(requested: wait_walk.Load) -> Any:
        if group and (found := of_group(requested, jobs, group)):
            return found
        match requested:
            case LoadNow():
                return NOW
            case LoadRows(WaitQuery.JOB, (job_id,)):
                loaded_jobs[str(job_id)] += 1
                return [jobs[str(job_id)]] if job_id in jobs else []
            case LoadRows(WaitQuery.RUN, _):
                return [{"run_id": "a1", "group_key": None, "group_acquired": False}]
            case LoadRows(WaitQuery.JOBS_OF_RUN, _):
                return list(jobs.values())
            case LoadRows(WaitQuery.RECENT, values):
                assert values[0] == "linux"
                return [{"repository": "river/otter", "seconds": 60.0}]
        raise AssertionError(requested)

    walk = wait_walk.waiting(job_id, moment(NOW).rules)
    loaded: Any = None
    try:
        while True:
            loaded = load(walk.send(loaded))
    except StopIteration as end:
        return end.value, loaded_jobs


def test_a_job_that_is_gone_has_no_facts() -> None:
    assert facts_of("gone", {}) == (None, Counter(gone=1))


def test_a_blocked_job_waits_for_what_its_needs_wait_for_each_of_which_is_read_once() -> None:
    jobs = {
        "build": row("build", "running"),
        "lint": row("lint", "blocked", '["build"]'),
        "test": row("test", "blocked", '["build"]'),
        "ship": row("ship", "blocked", '["lint", "test"]'),
    }
    facts, loaded = facts_of("ship", jobs)
    assert facts is not None
    assert facts.recent
    assert loaded == Counter(jobs.keys())
    found = {need.name: need.facts for need in facts.needs}
    assert found.keys() == {"lint", "test"}
    for each in found.values():
        assert each is not None
        ((name, builds),) = [(need.name, need.facts) for need in each.needs]
        assert name == "build"
        assert builds is not None
        assert (builds.state, bool(builds.recent)) == (JobState.RUNNING, True)


def test_no_more_jobs_are_read_than_a_prediction_may_cost() -> None:
    names = [f"j{number}" for number in range(MAX_JOBS_READ + 9)]
    jobs = {name: row(name, "running") for name in names}
    jobs["ship"] = row("ship", "blocked", str(names).replace("'", '"'))
    facts, loaded = facts_of("ship", jobs)
    assert facts is not None
    assert len(facts.needs) == len(names)
    assert [need.facts is None for need in facts.needs].count(False) == MAX_JOBS_READ
    assert loaded.total() == 1 + MAX_JOBS_READ


@pytest.mark.parametrize("more", [0, 1, 9])
def test_of_a_run_ahead_with_too_many_jobs_not_all_are_read(more: int) -> None:
    spec = json.dumps(encode_concurrency(Concurrency(group="deploy")))
    request = job_request().encode()
    group = [
        GroupMemberRow(None, "a0", 0, True, True, spec, 0.0, request),
        GroupMemberRow(None, "a1", 0, False, False, spec, 1.0, request),
    ]
    jobs = {name: row(name, "running") for name in (f"j{number}" for number in range(MAX_JOBS_READ + more))}
    facts, loaded = facts_of("ship", {**jobs, "ship": row("ship", "blocked")}, group)
    assert facts is not None
    assert (facts.group, len(facts.group_ahead)) == ("deploy", 1)
    assert loaded.total() == 1 + MAX_JOBS_READ
    assert (None in facts.group_jobs) == (more > 0)
