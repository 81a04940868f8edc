"""Every job store lists with all filters, page by page, and reads parts of logs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.views import JobView, LogByte, LogChunk, RunView
from tests.builders import job, job_request
from tests.stores import FAILED, SUCCEEDED, ManualClock, admitted, claimed, planned, running

REPOSITORIES: Final = ("lantern/harbour", "lantern/pier")
REFS: Final = ("refs/heads/main", "refs/heads/fog", None)
LABELS: Final = ("linux", "illumos")
PRIORITIES: Final = (Priority.DEFAULT, Priority.HIGH)


@pytest.fixture
async def populated(store: JobStore) -> JobStore:
    """Runs of every repository and ref, with jobs of every label, class and state."""
    for repository, ref in itertools.product(REPOSITORIES, REFS):
        request = job_request(repo_full_name=repository, **({"ref": ref} if ref else {"ref": None}))
        await planned(
            store,
            *(
                job("true", name=f"{label}-{priority}", runs_on=label, priority=priority)
                for label, priority in itertools.product(LABELS, PRIORITIES)
            ),
            job("true", name="last", needs=("linux-high",)),
            request=request,
        )
        await planned(store, job("true", runs_on="linux"), request=request.model_copy(update=again()))
    ends = itertools.cycle((SUCCEEDED, FAILED))
    for claim in await claimed(store, free={"linux": 9, "illumos": 5}, limit=14):
        await store.finish(claim.key, next(ends))
    await claimed(store, free={"linux": 1}, limit=1)
    await admitted(store)
    return store


def again() -> dict[str, Any]:
    return {"request_id": job_request().request_id}


async def every_run(store: JobStore, limit: int, **filters: Any) -> list[RunView]:
    found, after = list[RunView](), None
    while True:
        page = await store.runs(limit=limit, after=after, **filters)
        assert len(page.runs) <= limit
        found += page.runs
        if page.next is None:
            return found
        after = page.next


async def every_job(store: JobStore, limit: int, run_id: str | None = None, **filters: Any) -> list[JobView]:
    found, after = list[JobView](), None
    while page := await store.jobs(limit=limit, run_id=run_id, after=after, **filters):
        assert len(page) <= limit
        found += page
        after = page[-1].job_id
    return found


def filter_choices() -> Sequence[Mapping[str, Any]]:
    """Every combination of filters, each with a value or without, and with unknown values."""
    choices: dict[str, tuple[Any, ...]] = {
        "repository": (None, REPOSITORIES[1]),
        "ref": (None, "refs/heads/fog"),
        "label": (None, "illumos", "nowhere"),
        "priority": (None, Priority.HIGH),
    }
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


async def test_runs_are_what_every_combination_of_filters_asks_for(populated: JobStore) -> None:
    jobs = await every_job(populated, 100)
    everything = await every_run(populated, 100)
    assert len(everything) == 13

    def fits(run: RunView, given: Mapping[str, Any]) -> bool:
        of_run = [each for each in jobs if each.run_id == run.run_id]
        has_job = any(
            given["label"] in {None, each.runs_on} and given["priority"] in {None, each.priority}
            for each in of_run
        )
        return (
            given["repository"] in {None, run.repo_full_name}
            and given["ref"] in {None, run.ref}
            and given["state"] in {None, run.state}
            and (has_job or (given["label"] is given["priority"] is None))
        )

    states = {run.state for run in everything}
    assert {RunState.PLANNING, RunState.RUNNING} < states
    for given, state in itertools.product(filter_choices(), (None, *states, RunState.ERRORED)):
        filters = {**given, "state": state}
        expected = [run for run in everything if fits(run, filters)]
        assert await every_run(populated, 3, **filters) == expected, filters


async def test_jobs_are_what_every_combination_of_filters_asks_for(populated: JobStore) -> None:
    runs = {run.run_id: run for run in await every_run(populated, 100)}
    everything = await every_job(populated, 100)
    assert len(everything) == 36
    assert [each.job_id for each in everything] == sorted((each.job_id for each in everything), reverse=True)

    def fits(each: JobView, given: Mapping[str, Any]) -> bool:
        run = runs[each.run_id]
        return (
            given["repository"] in {None, run.repo_full_name}
            and given["ref"] in {None, run.ref}
            and given["state"] in {None, each.state}
            and given["label"] in {None, each.runs_on}
            and given["priority"] in {None, each.priority}
        )

    states = {each.state for each in everything}
    assert {JobState.WAITING, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED} <= states
    for given, state in itertools.product(filter_choices(), (None, *states, JobState.ERRORED)):
        filters = {**given, "state": state}
        expected = [each for each in everything if fits(each, filters)]
        assert await every_job(populated, 3, **filters) == expected, filters


async def test_jobs_of_a_run_come_in_the_order_of_its_workflow(populated: JobStore) -> None:
    run = (await every_run(populated, 100))[-1]
    jobs = await every_job(populated, 2, run_id=run.run_id)
    assert [each.name for each in jobs] == [
        "linux-default",
        "linux-high",
        "illumos-default",
        "illumos-high",
        "last",
    ]
    high = await every_job(populated, 1, run_id=run.run_id, priority=Priority.HIGH)
    assert [each.name for each in high] == ["linux-high", "illumos-high"]


async def test_pages_have_everything_once_although_runs_are_added_in_between(populated: JobStore) -> None:
    before = await every_run(populated, 100)
    first = await populated.runs(limit=5)
    await planned(populated, job("true"))
    second = await populated.runs(limit=100, after=first.next)
    assert [*first.runs, *second.runs] == before
    jobs = await every_job(populated, 100)
    page = await populated.jobs(limit=7, label="linux")
    await planned(populated, job("true"))
    rest = await populated.jobs(limit=100, label="linux", after=page[-1].job_id)
    assert [*page, *rest] == [each for each in jobs if each.runs_on == "linux"]


async def test_a_page_goes_on_behind_what_is_gone(populated: JobStore, clock: ManualClock) -> None:
    page = await populated.runs(limit=100, state=RunState.SUCCEEDED)
    last = page.runs[0].run_id
    assert (await populated.purge(-1.0, 100)).runs
    assert await populated.run(last) is None
    behind = await populated.runs(limit=100, after=last)
    assert behind.runs == [run for run in await every_run(populated, 100) if run.run_id < last]


@pytest.mark.parametrize(
    ("byte", "expected"),
    [
        (0, LogByte(total=9, start=0, sequence=1, begins=0)),
        (3, LogByte(total=9, start=3, sequence=1, begins=0)),
        (4, LogByte(total=9, start=4, sequence=2, begins=4)),
        (6, LogByte(total=9, start=6, sequence=5, begins=6)),
        (8, LogByte(total=9, start=8, sequence=5, begins=6)),
        (9, LogByte(total=9, start=9, sequence=1, begins=0)),
        (-3, LogByte(total=9, start=6, sequence=5, begins=6)),
        (-9, LogByte(total=9, start=0, sequence=1, begins=0)),
        (-100, LogByte(total=9, start=0, sequence=1, begins=0)),
    ],
)
async def test_a_byte_of_a_log_is_found_in_its_chunk(store: JobStore, byte: int, expected: LogByte) -> None:
    key = (await running(store)).key
    pieces = {1: b"four", 2: b"\xff\x00", 5: b"end"}
    await store.append_log(
        key, [LogChunk(sequence=sequence, at=1.0, data=data) for sequence, data in pieces.items()]
    )
    assert await store.log_byte(key.job_id, attempt=1, byte=byte) == expected
    nothing = await store.log_byte(key.job_id, attempt=2, byte=byte)
    assert nothing == LogByte(total=0, start=max(byte, 0), sequence=1, begins=0)
