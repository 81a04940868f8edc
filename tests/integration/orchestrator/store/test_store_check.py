"""`store check` reports on both kinds of store and changes nothing."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError, SchemaTooNew
from solstice_common.storage.migrations import migrations_of
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.admin.check import check
from tests.builders import job_request
from tests.populated_store import populate
from tests.servers.postgresql import ScratchDatabase
from tests.stores import ManualClock

Change = Callable[[str], None]


@pytest.fixture
def change(store_url: str, request: pytest.FixtureRequest) -> Change:
    """Change the database directly."""
    if not store_url.startswith("sqlite"):
        return request.getfixturevalue("store_database").query  # type: ignore[no-any-return]  # pytest types no fixture that is asked for by name

    def sqlite(statement: str) -> None:
        with closing(
            sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(statement)

    return sqlite


async def populated(url: str) -> None:
    clock = ManualClock()
    async with open_store(url, clock=clock) as store:
        await populate(store, clock)


async def test_a_store_that_was_lived_in_is_well(store_url: str) -> None:
    await populated(store_url)
    found = await check(store_url)
    assert found.well
    assert found.version == found.known == max(each.version for each in migrations_of(schema(store_url)))
    assert found.counts["runs"] == 7
    assert found.counts["request_aliases"] == 1
    assert found.counts["attempts"] == 5
    assert all(
        found.counts[table] for table in ("jobs", "log_chunks", "outbox", "workers", "schedules", "ticks")
    )


async def test_messages_are_counted_and_not_the_rows_that_hold_them(store_url: str) -> None:
    async with open_store(store_url, clock=ManualClock()) as store:
        await store.admit([job_request() for _ in range(100)])
        group = await store.outbox(10)
        await store.published([each.number for each in group])
    assert (await check(store_url)).counts["outbox"] == 90


def schema(url: str) -> str:
    return f"solstice_orchestrator.store.schema.{url.partition(':')[0]}"


async def test_no_password_is_shown(postgresql_database: ScratchDatabase) -> None:
    found = await check(postgresql_database.url)
    assert found.database.endswith(postgresql_database.name)
    assert ":" not in found.database.partition("@")[0].removeprefix("postgresql:")


async def test_a_new_database_waits_for_its_migrations(
    postgresql_database: ScratchDatabase, tmp_path: Path
) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    for url in (postgresql_database.url, f"sqlite:///{file}"):
        found = await check(url)
        assert (found.version, found.well, found.counts) == (0, False, {})
        assert list(found.pending) == [each.version for each in migrations_of(schema(url))]
    assert file.stat().st_size == 0


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM requests", "7 runs without their request"),
        ("DELETE FROM attempts WHERE number = 9", None),
        ("INSERT INTO request_aliases VALUES ('x', 'gone')", "1 other request ids without a run"),
        ("UPDATE jobs SET worker_id = NULL WHERE state = 'running'", "2 running jobs without a holder"),
        ("UPDATE jobs SET finished_at = NULL WHERE state = 'failed'", "1 finished runs with unfinished jobs"),
        (
            "UPDATE jobs SET finished_at = 1.0 WHERE runs_on = 'illumos'",
            "1 planned runs whose jobs have all ended, but which have not",
        ),
    ],
    ids=["request", "nothing", "alias", "holder", "unfinished-job", "unfinished-run"],
)
async def test_what_does_not_fit_together_is_counted(
    store_url: str, change: Change, damage: str, problem: str | None
) -> None:
    await populated(store_url)
    change(damage)
    found = await check(store_url)
    assert [found_problem for found_problem in found.problems if not found_problem.startswith("rows of")] == (
        [problem] if problem else []
    )
    assert found.well == (problem is None)


async def test_rows_that_lost_what_they_belong_to_are_found(store_url: str, change: Change) -> None:
    await populated(store_url)
    # Logs are those of builds; of the attempts at linting two have rows of their own in every store.
    change("DELETE FROM jobs WHERE name IN ('build', 'lint')")
    problems = " ".join((await check(store_url)).problems)
    assert "attempts without a job" in problems
    assert "logs without a job" in problems


async def test_a_newer_schema_is_refused(store_url: str, change: Change) -> None:
    await populated(store_url)
    change("UPDATE schema_migrations SET version = 9999 WHERE version = 2")
    with pytest.raises(SchemaTooNew):
        await check(store_url)


async def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        await check(f"sqlite:///{tmp_path / 'none.db'}")
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []
    with pytest.raises(ConfigurationError):
        await check("mysql://db.example/solstice")


async def test_a_damaged_file_is_reported_as_damaged(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    await populated(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'runs_by_state'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(await asyncio.to_thread(file.read_bytes))
    # An index is filled from the end of its page: this is the id of some run.
    content[page * size - 20 : page * size - 10] = b"0123456789"
    await asyncio.to_thread(file.write_bytes, content)
    found = await check(f"sqlite:///{file}")
    assert not found.well
    assert found.problems
    assert all(problem.startswith("the file is damaged: ") for problem in found.problems)
    assert found.counts == {}
