"""Every job store lists the runs of one state among all others."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_orchestrator.domain.jobs import Concurrency, JobSpec, Outcome, Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.postgresql.reading import listing
from solstice_orchestrator.store.views import RunView
from tests.builders import job, job_request
from tests.contract.test_job_listing import every_job, every_run
from tests.stores import CHECKOUT_ERRORED, FAILED, SUCCEEDED, WORKER, claimed

REPOSITORIES: Final = ("lantern/harbour", "lantern/pier")
REFS: Final = ("refs/heads/main", "refs/tags/v1")
ROUNDS: Final = 4
"""Each repository has each life with each of the refs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """The history of a run. Its jobs with the label `linux` are claimed."""

    jobs: Sequence[JobSpec] = ()
    request: Mapping[str, Any] | None = None
    outcome: Outcome | None = None
    """Of its claimed jobs; None: they run."""


QUICK, SLOW = job("true", name="quick"), job("true", name="slow", runs_on="slow")
IN_GROUP: Final = job("true", concurrency=Concurrency(group="deploy"))
HISTORIES: Final[Mapping[str, RunHistory]] = {
    "waits": RunHistory(jobs=[SLOW]),
    "runs": RunHistory(jobs=[QUICK]),
    "succeeded": RunHistory(jobs=[QUICK], outcome=SUCCEEDED),
    "backs off": RunHistory(jobs=[QUICK], outcome=CHECKOUT_ERRORED),
    "holds a group, or waits for it": RunHistory(jobs=[IN_GROUP]),
    "delayed": RunHistory(request={"not_before": "2999-01-01T00:00:00Z"}),
    "failed": RunHistory(jobs=[QUICK], outcome=FAILED),
    "to be approved": RunHistory(jobs=[SLOW], request={"needs_approval": True, "trusted": False}),
    "to be planned": RunHistory(),
    "is being planned": RunHistory(),
    "several wait": RunHistory(jobs=[SLOW, job("true", runs_on="slow")]),
    "one runs, one waits": RunHistory(jobs=[QUICK, SLOW]),
    "one ended, one waits": RunHistory(jobs=[SLOW, QUICK], outcome=SUCCEEDED),
    "one ended, one is blocked": RunHistory(
        jobs=[QUICK, job("true", needs=("slow",)), SLOW], outcome=SUCCEEDED
    ),
    "several succeeded": RunHistory(jobs=[QUICK, job("true")], outcome=SUCCEEDED),
    "cancelled": RunHistory(jobs=[SLOW]),
}


@pytest.fixture(params=[1, 5, listing.WALKED], ids=lambda walked: f"walks-of-{walked}")
def walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of the newest runs the PostgreSQL store reads before it uses another index.

    SQLite has one way only.
    """
    monkeypatch.setattr(listing, "WALKED", request.param)
    return int(request.param)


@pytest.fixture
async def histories(store: JobStore) -> Mapping[str, str]:
    """Each life several times, by turns; by the ids of the runs."""
    requests, names = [], {}
    for number, (name, history) in itertools.product(range(ROUNDS), HISTORIES.items()):
        request = job_request(
            repo_full_name=REPOSITORIES[number % 2], ref=REFS[number // 2], **(history.request or {})
        )
        requests.append(request)
        names[request.request_id] = name
    admissions = [(await store.admit([request]))[0] for request in requests]
    found = {
        admission.run_id: names[request.request_id]
        for request, admission in zip(requests, admissions, strict=True)
    }
    for task in await store.claim_planning(WORKER, len(found)):
        name = found[task.run_id]
        if name == "to be planned":
            assert await store.not_planned(task, Reason.RELEASED, "")
        elif name != "is being planned":
            assert await store.planned(task, HISTORIES[name].jobs)
    for claim in await claimed(store):
        outcome = HISTORIES[found[claim.run_id]].outcome
        if outcome is not None:
            assert await store.finish(claim.key, outcome)
    for run_id, name in found.items():
        if name == "cancelled":
            await store.cancel_run(run_id)
    return found


async def test_each_life_is_in_the_state_that_it_is_meant_for(
    store: JobStore, histories: Mapping[str, str]
) -> None:
    """Otherwise the other tests here would check less than their names say."""
    runs, jobs = await every_run(store, 100), await every_job(store, 100)
    assert len(runs) == ROUNDS * len(HISTORIES)
    states = defaultdict(set)
    for run in runs:
        states[histories[run.run_id]].add(run.state)
    assert states["one ended, one waits"] == states["one ended, one is blocked"] == {RunState.RUNNING}
    assert states["backs off"] == states["several wait"] == states["to be approved"] == {RunState.WAITING}
    assert states["holds a group, or waits for it"] == {RunState.RUNNING, RunState.WAITING}
    assert states["to be planned"] == states["is being planned"] == {RunState.PLANNING}
    of_run = defaultdict(list)
    for each in jobs:
        of_run[each.run_id].append(each.state)
    assert {states[0] for states in of_run.values() if len(states) == 1} >= set(JobState) - FINAL


async def test_lists_of_each_state_hold_what_is_in_it(
    store: JobStore, histories: Mapping[str, str], walked: int
) -> None:
    everything = await every_run(store, 100)
    assert len(everything) == len(histories)
    labels = {run.run_id: set[str]() for run in everything}
    for each in await every_job(store, 100):
        labels[each.run_id].add(each.runs_on)

    def fits(run: RunView, given: Mapping[str, Any]) -> bool:
        return (
            given["repository"] in {None, run.repo_full_name}
            and given["ref"] in {None, run.ref}
            and given["state"] is run.state
            and (given["label"] is None or given["label"] in labels[run.run_id])
        )

    for repository, ref, label, state, limit in itertools.product(
        (None, REPOSITORIES[1], "lantern/nowhere"), (None, REFS[0]), (None, "slow"), RunState, (2, 100)
    ):
        filters = {"repository": repository, "ref": ref, "label": label, "state": state}
        expected = [run for run in everything if fits(run, filters)]
        assert await every_run(store, limit, **filters) == expected, (walked, limit, filters)


async def test_a_page_begins_behind_a_run_of_any_state(
    store: JobStore, histories: Mapping[str, str], walked: int
) -> None:
    everything = await every_run(store, 100)
    for after, state in itertools.product(histories, (state for state in RunState if not state.final)):
        behind = [run for run in everything if run.run_id < after and run.state is state]
        page = await store.runs(limit=3, after=after, state=state)
        assert page.runs == behind[:3], (walked, after, state)
        assert page.next == (behind[2].run_id if len(behind) > 3 else None)
