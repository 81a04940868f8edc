"""Runs that are open when PostgreSQL's indexes change are still found, approved and ended."""

from pathlib import Path
from typing import Final

from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.jobs import Concurrency, JobSpec, Reason, RunSpec
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job, job_request
from tests.integration.orchestrator.store.test_store_upgrade import STEPS, fill
from tests.servers.postgresql import ScratchDatabase
from tests.stores import FAILED, SUCCEEDED, ManualClock, admitted, claimed, planned, planning_task

SINCE: Final = 17
TIMEOUT: Final = 900.0
DEPLOY: Final = RunSpec(concurrency=Concurrency(group="deploy"))
SLOW: Final = job("true", name="slow", runs_on="slow")


async def with_limits(store: JobStore, spec: JobSpec, run_spec: RunSpec) -> str:
    run_id = await admitted(store)
    assert await store.planned(await planning_task(store), [spec], run_spec)
    return run_id


async def by_state(store: JobStore) -> dict[RunState, list[str]]:
    """The ids of the runs in the list of each state."""
    return {
        state: [run.run_id for run in (await store.runs(limit=100, state=state)).runs] for state in RunState
    }


async def test_runs_are_found_let_go_and_ended_after_the_upgrade(
    postgresql_database: ScratchDatabase, tmp_path: Path
) -> None:
    url, file, clock = postgresql_database.url, tmp_path / "store.db", ManualClock()
    async with open_store(f"sqlite:///{file}", clock=clock) as source:
        for outcome in (SUCCEEDED, FAILED):
            await with_limits(source, job("true"), RunSpec(timeout_seconds=TIMEOUT))
            (claim,) = await claimed(source)
            await source.finish(claim.key, outcome)
        holder, next_one = [await with_limits(source, job("true"), DEPLOY) for _ in range(2)]
        timed = await with_limits(source, SLOW, RunSpec(timeout_seconds=TIMEOUT))
        waiting = await planned(source, SLOW)
        begun = await planned(source, job("true"), SLOW)
        running = await planned(source, job("true"))
        open_claim, ended, _ = await claimed(source)
        await source.finish(ended.key, SUCCEEDED)
        await source.cancel_run(await planned(source, SLOW))
        await admitted(source, job_request(not_before="2999-01-01T00:00:00Z"))
        for _ in range(2):
            await admitted(source)
        await planning_task(source)
        expected = await by_state(source)
    assert expected[RunState.RUNNING] == [running, begun, holder]
    assert expected[RunState.WAITING] == [waiting, timed, next_one]
    assert [len(runs) for runs in expected.values()] == [1, 2, 3, 3, 1, 1, 0, 1, 0, 0]

    await fill(url, file, tuple(step for step in STEPS if step.version < SINCE))
    async with open_store(url, clock=clock) as store:
        assert await by_state(store) == expected
        await store.finish(open_claim.key, SUCCEEDED)
        assert [claim.run_id for claim in await claimed(store)] == [next_one]
        clock.forward(TIMEOUT)
        await store.rescue()
        view, slow = await store.run(timed), (await store.jobs(run_id=timed, limit=9))[0]
        assert view is not None
        assert (view.state, slow.reason) == (RunState.TIMED_OUT, Reason.RUN_TIMEOUT)
        found = await by_state(store)
    assert found[RunState.TIMED_OUT] == [timed]
    # The leases of the others are over as well, and so they back off.
    assert found[RunState.WAITING] == [running, waiting, next_one]
    assert found[RunState.RUNNING] == [begun]
    assert found[RunState.SUCCEEDED] == [holder, *expected[RunState.SUCCEEDED]]
