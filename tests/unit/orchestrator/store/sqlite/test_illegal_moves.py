"""The database refuses moves that the table of states lacks."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store.decisions.transitions import IllegalMove
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from tests.stores import outbox_statuses, running, state_of


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    rng = random.Random(1)
    async with SqliteStore.open(
        tmp_path / "s.db", rules=StoreRules(new_id=id_source(rng), rng=rng)
    ) as opened:
        yield opened


@pytest.mark.parametrize("state", [JobState.SKIPPED, JobState.RUNNING, JobState.BLOCKED])
async def test_a_move_that_the_table_does_not_have_is_refused_and_undone(
    store: SqliteStore, state: JobState
) -> None:
    claim = await running(store)
    before = await outbox_statuses(store)
    with pytest.raises(IllegalMove, match=f"may not go from running to {state.value}"):
        await store.finish(claim.key, Outcome(state=state, reason=Reason.COMPLETED))
    assert await state_of(store, claim.key.job_id) == (JobState.RUNNING, Reason.CLAIMED)
    assert await outbox_statuses(store) == before
    assert (await store.attempts(claim.key.job_id))[0].finished_at is None
