"""With much finished work, SQLite's frequent queries read only unfinished rows."""

import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Concurrency
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from solstice_orchestrator.store.views import JobFilters, LogChunk
from tests.builders import job, job_cancel, job_request
from tests.schedules import COMMIT, added_schedule, claimed_tick
from tests.stores import (
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    WORKER,
    admitted,
    claimed,
    planned,
    retries_after,
    running,
)

GROWING = ("jobs", "runs", "requests", "attempts", "log_chunks", "request_aliases", "ticks")


class Watched:
    """A store, and every statement that it executes."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self._statements: list[str] = []

    async def watch(self) -> None:
        def trace(connection: sqlite3.Connection) -> None:
            connection.set_trace_callback(self._statements.append)

        await self.store._database.write(trace)
        await self.store._database.read(trace)

    async def scans(self) -> set[str]:
        """Every scan of a whole growing table or index in SQLite's query plan.

        Planning begins with the first entry of a partial index that has only the unplanned runs.
        """
        assert len(self._statements) > 10
        details = await self.plans() - {"SCAN runs USING INDEX runs_to_plan"}
        return {detail for detail in details if detail.startswith(tuple(f"SCAN {name}" for name in GROWING))}

    async def plans(self) -> set[str]:
        """SQLite's query plan of every statement."""
        statements = {
            text
            for text in self._statements
            if text.startswith(("SELECT", "WITH", "UPDATE", "DELETE", "INSERT"))
        }

        def explain(connection: sqlite3.Connection) -> set[str]:
            connection.set_trace_callback(None)
            return {
                str(row["detail"])
                for statement in statements
                for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
            }

        return await self.store._database.write(explain)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    rng = random.Random(1)
    rules = StoreRules(new_id=id_source(rng), rng=rng, retries=retries_after(0.0))
    async with SqliteStore.open(tmp_path / "store.db", rules=rules) as store:
        found = Watched(store)
        await found.watch()
        yield found


async def test_nothing_that_runs_all_the_time_walks_through_what_is_finished(watched: Watched) -> None:
    store = watched.store
    await store.admit([job_request(idempotency_key="x"), job_request(idempotency_key="x")])
    claim = await running(store, job("true", name="a"), job("true", name="b", needs=("a",)))
    await store.append_log(claim.key, [LogChunk(sequence=1, at=0.0, data=b"x")])
    await store.renew(WORKER, [claim.key])
    await store.finish(claim.key, CHECKOUT_ERRORED)
    await store.rescue()
    (again,) = await claimed(store)
    await store.finish(again.key, RELEASED)
    (again,) = await claimed(store)
    await store.finish(again.key, FAILED)
    rows = await store.outbox(100)
    await store.published([row.number for row in rows])
    await store.counts()
    await store.cancel_run(claim.run_id)
    await store.admit([job_request(change_number=7)])
    await store.cancel_changes([job_cancel()])
    await store.rerun(claim.run_id)
    await store.log(claim.key.job_id)
    await store.run_of_request(claim.request.request_id)
    await store.jobs(run_id=claim.run_id, limit=9)
    await store.jobs(state=JobState.ERRORED, limit=9)
    await store.runs(limit=9, state=RunState.ERRORED)
    await store.runs(limit=9, repository="lantern/harbour")
    name = (await added_schedule(store.schedule_store, name="nightly")).name
    for _ in range(2):
        await store.schedule_store.fire(name)
        await store.schedule_store.fired(await claimed_tick(store.schedule_store), COMMIT)
    await store.schedule_store.pause_seconds()
    await store.schedule_store.pause(name)
    # The counts walk through the partial index that holds nothing but unfinished jobs.
    assert {scan for scan in await watched.scans() if "jobs_open" not in scan} == set()


async def test_delays_and_demand_look_at_indexes_of_what_is_delayed_and_waits(watched: Watched) -> None:
    store = watched.store
    await store.admit([job_request(not_before="2999-01-01T00:00:00Z")])
    await planned(store, job("true"))
    for _ in range(3):
        await store.claim_planning(WORKER, 9)
        await store.planning_pause()
        await store.delayed()
        await store.demand(300.0)
        await store.demand(300.0, "linux")
    work_in_hand = ("jobs_by_wait", "jobs_running", "jobs_open", "runs_delayed")
    used = await watched.plans()
    assert "SEARCH runs USING INDEX runs_delayed (plan_at<?)" in used
    assert "SEARCH jobs USING INDEX jobs_by_wait (runs_on=?)" in used
    scans = {scan for scan in await watched.scans() if not any(index in scan for index in work_in_hand)}
    assert scans == set()


async def test_a_repositorys_unfinished_runs_are_found_among_the_unfinished(watched: Watched) -> None:
    await watched.store.runs(limit=9, repository="lantern/harbour", state=RunState.RUNNING)
    used = {detail for detail in await watched.plans() if "runs" in detail and "requests" not in detail}
    assert used == {"SEARCH runs USING INDEX runs_by_state (state=?)"}


@pytest.mark.parametrize("state", [None, JobState.WAITING, JobState.FAILED])
async def test_jobs_are_found_in_indexes_that_hold_what_is_asked_for(
    watched: Watched, state: JobState | None
) -> None:
    filters = {
        "repository": "lantern/harbour",
        "ref": "refs/heads/main",
        "label": "linux",
        "priority": Priority.HIGH,
    }
    for chosen in ({}, *({name: value} for name, value in filters.items()), filters):
        job_filters = JobFilters(**chosen, state=state)  # type: ignore[typeddict-item]  # of a dict only that its values are objects is known
        await watched.store.jobs(limit=9, **job_filters)
        await watched.store.jobs(limit=9, after="0190a5b2-0000-7000-8000-000000000000", **job_filters)
    # No index holds what waits in the order of its ids: that is what is sorted, and no more.
    known = {
        "jobs_ended (state=?",
        "jobs_ended_of_repository (repository=? AND state=?",
        "jobs_open (state=?",
    }
    used = {detail for detail in await watched.plans() if detail.startswith(("SEARCH jobs", "SCAN jobs"))}
    assert used
    for detail in used - {
        "SCAN jobs USING INDEX sqlite_autoindex_jobs_1",
        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (job_id<?)",
    }:
        assert any(detail.startswith(f"SEARCH jobs USING INDEX {index}") for index in known), detail


async def test_runs_of_a_branch_are_found_by_it(watched: Watched) -> None:
    await watched.store.runs(limit=9, ref="refs/heads/main")
    await watched.store.runs(limit=9, ref="refs/heads/main", state=RunState.FAILED)
    used = {detail for detail in await watched.plans() if "runs" in detail and "requests" not in detail}
    assert used == {"SEARCH runs USING INDEX runs_by_ref (ref=?)"}


async def test_watermarks_are_found_by_the_newest_pushes_of_each_ref(watched: Watched) -> None:
    await planned(watched.store, job("true"))
    await watched.store.admit([job_request(), job_request()])
    filters: tuple[dict[str, Any], ...] = ({}, {"repository": "lantern/harbour"}, {"ref": "refs/heads/main"})
    for chosen in filters:
        await watched.store.watermarks(limit=9, **chosen)
        await watched.store.watermarks(limit=9, behind=True, **chosen)
    await watched.store.watermark_lag()
    used = {detail for detail in await watched.plans() if "INDEX runs_by_" in detail}
    assert used >= {
        "SEARCH pushes USING INDEX runs_by_push (repository=? AND ref>?)",
        "SEARCH pushes USING INDEX runs_by_push ((repository,ref)>(?,?))",
        "SEARCH runs USING INDEX runs_by_push (repository=? AND ref=?)",
        "SEARCH runs USING INDEX runs_by_push (repository=? AND ref=? AND run_id>?)",
        "SEARCH runs USING INDEX runs_by_state (state=?)",
    }
    in_hand = ("pending", "refs", "behind", "marked", "pushes")
    scans = {scan for scan in await watched.scans() if scan.removeprefix("SCAN ").split()[0] not in in_hand}
    assert scans == set()


async def test_a_purge_looks_only_at_what_is_old_and_what_belongs_to_it(watched: Watched) -> None:
    store = watched.store
    await store.admit([job_request(idempotency_key="x"), job_request(idempotency_key="x")])
    claim = await running(store)
    await store.append_log(claim.key, [LogChunk(sequence=1, at=0.0, data=b"x")])
    await store.finish(claim.key, FAILED)
    assert await store.purgeable(-1.0) == 1
    assert (await store.purge(-1.0, 10)).runs == 1
    assert await watched.scans() == set()
    assert "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run_id<?)" in await watched.plans()


async def test_asking_why_a_job_waits_walks_through_nothing_that_is_finished(watched: Watched) -> None:
    store = watched.store
    group = Concurrency(group="deploy")
    run_id = await planned(
        store,
        job("true", name="a"),
        job("true", name="b", needs=("a",)),
        job("true", name="c", concurrency=group),
        job("true", name="d", concurrency=group),
    )
    views = await store.jobs(run_id=run_id, limit=9)
    for view in views:
        await store.waiting(view.job_id)
    await store.planning(await admitted(store))
    assert {scan for scan in await watched.scans() if "jobs_open" not in scan} == set()
    assert "SEARCH jobs USING INDEX jobs_by_end (runs_on=?)" in await watched.plans()
