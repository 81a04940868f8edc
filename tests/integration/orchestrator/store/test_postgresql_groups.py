"""On PostgreSQL a group advances in a transaction after an end, which may be missing."""

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Concurrency, Reason
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.postgresql import store as postgresql_store
from tests.builders import job
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, claimed, planned


async def test_a_group_that_was_not_settled_is_settled_by_the_next_rescue(
    store_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object, **__: object) -> None:
        raise StoreUnavailable("store", "away, as planned")

    spec = job("true", concurrency=Concurrency(group="deploy"))
    async with open_store(store_database.url) as store:
        await planned(store, spec)
        second = await planned(store, spec)
        (claim,) = await claimed(store)
        with monkeypatch.context() as patched:
            patched.setattr(postgresql_store, "settle_group", dies)
            assert await store.finish(claim.key, SUCCEEDED)
        (view,) = await store.jobs(run_id=second, limit=1)
        assert (view.state, view.reason) == (JobState.BLOCKED, Reason.CONCURRENCY_GROUP)
        await store.rescue()
        assert [each.run_id for each in await claimed(store)] == [second]
