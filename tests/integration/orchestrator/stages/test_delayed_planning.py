"""A delayed run starts at its time, by the clocks of real stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from solstice_common.messages.states import RunState
from solstice_common.values.times import format_seconds, parse_timestamp
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.stages import planning
from solstice_orchestrator.stages.planning import run_planning
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import RunView
from solstice_orchestrator.workflow.job_plan import PlanningRules
from tests.builders import job_request
from tests.repositories import Repository
from tests.stores import outbox_statuses, wait_for_stored

SOON = 1.5
LATE = 10.0
"""Far less than the polling interval, with room for a busy machine."""


@pytest.fixture(autouse=True)
def _notifications_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off polling: only notifications wake the loop."""
    monkeypatch.setattr(planning, "POLL_SECONDS", 3600.0)


@asynccontextmanager
async def planners(url: str, tmp_path: Path, count: int) -> AsyncIterator[JobStore]:
    """So many orchestrators' planning loops on one store; a reader's view of it."""
    async with AsyncExitStack() as stack:
        loops = [
            asyncio.create_task(
                run_planning(
                    store=await stack.enter_async_context(open_store(url)),
                    worker_id=f"worker-{number}",
                    git=GitPolicy(protocols=("file",)),
                    scratch=tmp_path / f"scratch-{number}",
                    rules=PlanningRules(),
                )
            )
            for number in range(count)
        ]
        try:
            yield await stack.enter_async_context(open_store(url))
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)


async def planned(store: JobStore, run_id: str) -> RunView:
    """The run, once it has jobs."""
    run = await wait_for_stored(
        store,
        lambda: store.run(run_id),
        lambda run: run is not None and run.state not in {RunState.DELAYED, RunState.PLANNING},
    )
    assert run is not None
    return run


@pytest.mark.parametrize("orchestrators", [1, 3])
async def test_it_starts_at_its_time_once(store_url: str, tmp_path: Path, orchestrators: int) -> None:
    repository = Repository(tmp_path / "repository")
    sha = repository.commit({".solstice/job.sh": "true"})
    async with planners(store_url, tmp_path, orchestrators) as store:
        due = datetime.now(UTC).timestamp() + SOON
        request = job_request(repo_url=repository.url, commit_sha=sha, not_before=format_seconds(due))
        (admission,) = await store.admit([request])
        assert (await planned(store, admission.run_id)).state is RunState.WAITING
        statuses = [each for each in await outbox_statuses(store) if each.job_id is None]
    assert [each.state for each in statuses] == ["delayed", "planning", "waiting"]
    begun = parse_timestamp(statuses[1].occurred_at).timestamp() - due
    assert -0.002 <= begun < LATE


async def test_one_that_is_due_sooner_comes_later_and_starts_first(store_url: str, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    sha = repository.commit({".solstice/job.sh": "true"})
    async with planners(store_url, tmp_path, 1) as store:
        now = datetime.now(UTC).timestamp()
        runs = []
        for due in (now + 3600, now + SOON):
            request = job_request(repo_url=repository.url, commit_sha=sha, not_before=format_seconds(due))
            (admission,) = await store.admit([request])
            runs.append(admission.run_id)
        far, near = runs
        assert (await planned(store, near)).state is RunState.WAITING
        run = await store.run(far)
    assert run is not None
    assert run.state is RunState.DELAYED
