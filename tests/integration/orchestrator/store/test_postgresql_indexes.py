"""With much finished work, frequent PostgreSQL queries read only unfinished rows."""

import uuid
from typing import Any

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import JobFilters, LogChunk
from tests.builders import job, job_request
from tests.schedules import COMMIT, added_schedule, claimed_tick
from tests.servers.postgresql import ScratchDatabase
from tests.stores import (
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    claimed,
    planned,
    retries_after,
    running,
)

QUOTAS = Quotas(slots=Caps(default=9), starts_per_hour=Caps(default=90))
GROWING = ("jobs", "runs", "requests", "attempts", "log_chunks", "request_aliases", "ref_runs", "ticks")


async def live(store: JobStore) -> None:
    """Run the frequent operations, and some queries of people."""
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
    await store.finish(again.key, FAILED)
    await store.renew(WORKER, [again.key])
    await planned(store)
    (other,) = await claimed(store)
    await store.finish(other.key, SUCCEEDED)
    rows = await store.outbox(100)
    await store.published([row.number for row in rows])
    await store.counts()
    await store.cancel_run(claim.run_id)
    await store.rerun(claim.run_id)
    await store.log(claim.key.job_id)
    await store.attempts(claim.key.job_id)
    await store.run_of_request(claim.request.request_id)
    await store.jobs(run_id=claim.run_id, limit=9)
    for state in (JobState.ERRORED, JobState.WAITING, JobState.RUNNING, JobState.BACKOFF):
        await store.jobs(state=state, limit=9)
    for run_state in (None, *RunState):
        await store.runs(limit=9, state=run_state)
        await store.runs(limit=9, state=run_state, repository="lantern/harbour")
        await store.runs(limit=9, state=run_state, ref="refs/heads/main", label="linux")
    for filters in (
        JobFilters(repository="lantern/harbour"),
        JobFilters(ref="refs/heads/main", state=JobState.FAILED),
        JobFilters(label="linux", priority=Priority.HIGH),
    ):
        await store.jobs(limit=9, **filters)
    await store.jobs(limit=9)
    await store.log_byte(claim.key.job_id, attempt=1, byte=0)
    await store.waiting(claim.key.job_id)
    await store.admit([job_request(not_before="2999-01-01T00:00:00Z")])
    await store.claim_planning(WORKER, 9)
    await store.planning_pause()
    await store.delayed()
    by_name: tuple[dict[str, Any], ...] = ({}, {"repository": "lantern/harbour"}, {"ref": "refs/heads/main"})
    for chosen in by_name:
        await store.watermarks(limit=9, **chosen)
        await store.watermarks(limit=9, behind=True, **chosen)
    await store.watermark_lag()
    await store.demand(300.0)
    await store.demand(300.0, "linux")
    name = (await added_schedule(store.schedule_store, name=f"s-{uuid.uuid4().hex}")).name
    for _ in range(2):
        await store.schedule_store.fire(name)
        await store.schedule_store.fired(await claimed_tick(store.schedule_store), COMMIT)
    await store.schedule_store.pause_seconds()
    await store.schedule_store.pause(name)


def walks(database: ScratchDatabase) -> dict[str, int]:
    """How often each of the growing tables was walked through, by sessions that have ended."""
    database.await_silence()
    rows = database.query(
        "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname = ANY($1)", list(GROWING)
    )
    return {row["relname"]: row["seq_scan"] for row in rows}


async def test_nothing_that_runs_all_the_time_walks_through_what_is_finished(
    postgresql_database: ScratchDatabase,
) -> None:
    url = postgresql_database.url
    async with open_store(url):
        pass
    # Making the indexes walked through the tables.
    before = walks(postgresql_database)
    assert before.keys() == set(GROWING)
    async with (
        open_store(url, retries=retries_after(0.0)) as store,
        open_store(url, retries=retries_after(0.0), caps=Caps(default=5), quotas=QUOTAS) as capped,
    ):
        # Planners avoid table scans in these sessions: a remaining scan shows a missing index.
        await live(store)
        await live(capped)
    assert walks(postgresql_database) == before
