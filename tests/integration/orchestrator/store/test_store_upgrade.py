"""The first orchestrator of a new version upgrades a PostgreSQL store and loses nothing."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from solstice_common.storage.migrations import Migration, migrations_of
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.admin import move
from solstice_orchestrator.store.admin.check import check
from tests.integration.orchestrator.store.test_store_move import everything
from tests.outbox_upgrade import BATCHES_VERSION, OLD_ROWS, check_outbox_after_upgrade
from tests.populated_store import PopulatedStore, populate
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, ManualClock, claimed

OLD_NAMES = {
    23: ("CREATE TEMP VIEW lineages AS SELECT *, ref_key AS lineage FROM ref_runs",),
    24: ("CREATE TEMP VIEW runs AS SELECT *, group_acquired AS group_held FROM main.runs",),
    26: (
        """CREATE TEMP VIEW request_signatures AS
        SELECT run_id, signature FROM requests JOIN runs USING (age) WHERE signature IS NOT NULL""",
    ),
    27: (
        "CREATE TEMP VIEW jobs AS SELECT *, cancel_requested AS cancel_asked, start_tag AS turn FROM main.jobs",
        "CREATE TEMP VIEW ref_runs AS SELECT *, requested_at AS asked_at FROM main.ref_runs",
        # Version 23 renamed another column of the same table.
        "CREATE TEMP VIEW cancels AS SELECT *, requested_at AS asked_at, stored_at AS kept_at FROM main.cancels",
    ),
    29: (
        # Version 27 renamed another column of the same table.
        "CREATE TEMP VIEW IF NOT EXISTS jobs AS SELECT *, start_tag AS turn FROM main.jobs",
        "CREATE TEMP VIEW turns AS SELECT *, next_tag AS next_turn FROM next_tags",
    ),
}
"""By the version that renamed or joined them: the newest file under the names that PostgreSQL's schema had before."""
STEPS = migrations_of("solstice_orchestrator.store.schema.postgresql")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def populated(file: Path, clock: ManualClock) -> PopulatedStore:
    async with open_store(f"sqlite:///{file}", clock=clock) as store:
        # An older version does not distinguish marks in a log from the job's output.
        return await populate(store, clock, with_marks=False)


async def fill(url: str, file: Path, steps: tuple[Migration, ...]) -> None:
    """Fill the store as a version that knew only these steps would have left it."""
    async with connected(url) as connection:
        await migrate(connection, url, steps)
        with move._locked_source(file) as source_file:
            for version, views in OLD_NAMES.items():
                for view in views if steps[-1].version < version else ():
                    source_file.execute(view)
            for table in await move._tables(connection):
                if table.name == "outbox":
                    continue  # the file has it in batches, of which they knew nothing; see below
                await move._copy(source_file, connection, table, lambda *_: None)
            await move._go_on_counting(connection)


@pytest.mark.parametrize("steps", range(1, len(STEPS)), ids=lambda steps: f"from-{STEPS[steps - 1].version}")
async def test_everything_is_there_after_the_upgrade_and_work_goes_on(
    postgresql_database: ScratchDatabase,
    file: Path,
    populated: PopulatedStore,
    clock: ManualClock,
    steps: int,
) -> None:
    url = postgresql_database.url
    await fill(url, file, STEPS[:steps])
    before = await check(url)
    assert list(before.pending) == [step.version for step in STEPS[steps:]]
    async with AsyncExitStack() as stack:
        # Orchestrators that are started together all want to bring it up to date.
        stores = await asyncio.gather(
            *(stack.enter_async_context(open_store(url, clock=clock)) for _ in range(4))
        )
        source = await stack.enter_async_context(open_store(f"sqlite:///{file}", clock=clock))
        assert await everything(stores[0]) == await everything(source)
        (claim,) = await claimed(stores[1], free={"illumos": 1})
        assert claim.run_id == populated.waiting
        assert await stores[2].finish(claim.key, SUCCEEDED)
    after = await check(url)
    assert after.well
    assert after.counts["runs"] == len(populated.runs)


async def test_messages_in_the_outbox_are_published_after_the_upgrade_before_newer_ones(
    postgresql_database: ScratchDatabase, clock: ManualClock
) -> None:
    url = postgresql_database.url
    async with connected(url) as connection:
        await migrate(connection, url, [step for step in STEPS if step.version < BATCHES_VERSION])
        await connection.executemany(
            "INSERT INTO outbox (kind, request_id, body, headers) VALUES ($1, $2, $3, $4)", OLD_ROWS
        )
    async with open_store(url, clock=clock) as store:
        await check_outbox_after_upgrade(store)
