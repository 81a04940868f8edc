"""SQLite databases in memory: who shares them, and what is left of them."""

import asyncio
import itertools
from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.storage.sqlite import Migration, SqliteDatabase
from solstice_common.storage.sqlite_place import (
    leader_lock_beside,
    notifier_beside,
    sqlite_place,
)
from tests.servers.own_thread import run_in_thread

SCHEMA = (Migration(1, "CREATE TABLE things (name TEXT PRIMARY KEY);\n"),)
NUMBERS = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory:unit-{next(NUMBERS)}"


async def add(database: SqliteDatabase, name: str) -> None:
    await database.write(
        lambda connection: connection.execute("INSERT INTO things VALUES (?)", (name,)).rowcount
    )


async def names(database: SqliteDatabase) -> list[str]:
    return await database.read(
        lambda connection: [row[0] for row in connection.execute("SELECT name FROM things ORDER BY name")]
    )


@pytest.mark.parametrize("url", ["memory://", "memory:A", "memory:a/b", "memory:a?b", "memory:" + "a" * 65])
def test_other_names_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write memory: or memory:NAME"):
        sqlite_place(url, "store")


def test_the_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    assert sqlite_place(f"sqlite:///{tmp_path / 'a.db'}", "store") == tmp_path / "a.db"


async def test_all_that_open_a_url_share_a_database_and_other_kinds_and_names_do_not(url: str) -> None:
    async with (
        SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as one,
        SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as same,
        SqliteDatabase.open(sqlite_place(url, "inbox"), SCHEMA) as other_kind,
        SqliteDatabase.open(sqlite_place(f"{url}-b", "store"), SCHEMA) as other_name,
    ):
        await add(one, "a")
        await add(same, "b")
        assert await names(one) == await names(same) == ["a", "b"]
        assert await names(other_kind) == await names(other_name) == []


async def test_it_ends_with_the_last_that_has_it_open(url: str) -> None:
    async with SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA):
        async with SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as second:
            await add(second, "a")
        async with SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as third:
            assert await names(third) == ["a"]
    async with SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as later:
        assert await names(later) == []


async def test_readers_and_writers_of_two_never_find_it_locked(url: str) -> None:
    place = sqlite_place(url, "store")
    async with (
        SqliteDatabase.open(place, SCHEMA, busy_seconds=0.0) as one,
        SqliteDatabase.open(place, SCHEMA, busy_seconds=0.0) as two,
    ):
        # Begun apart, so that each is a transaction of its own.
        for number in range(150):
            await asyncio.gather(add(one, f"one {number}"), add(two, f"two {number}"), names(one), names(two))
        assert len(await names(one)) == 300


async def test_a_reader_cannot_write(url: str) -> None:
    async with SqliteDatabase.open(sqlite_place(url, "store"), SCHEMA) as database:
        with pytest.raises(StoreUnavailable, match="readonly"):
            await database.read(lambda connection: connection.execute("DELETE FROM things"))


async def test_a_notification_wakes_the_listeners_of_the_same_data_in_every_thread(url: str) -> None:
    place = sqlite_place(url, "store")
    ours, others = notifier_beside(place, ".changes"), notifier_beside(place, ".changes")
    apart = notifier_beside(place, ".schedules")
    async with ours.listen() as here, others.listen() as there, apart.listen() as elsewhere:
        ours.notify_elsewhere()
        await asyncio.wait_for(there.wait(), 30)
        assert not here.is_set()
        ours.notify_here()
        assert here.is_set()
        here.clear()

        async def notify() -> None:
            notifier_beside(place, ".changes").notify()

        await asyncio.to_thread(run_in_thread, notify())
        await asyncio.wait_for(here.wait(), 30)
        assert not elsewhere.is_set()


async def test_a_listener_whose_loop_has_ended_harms_no_notification(url: str) -> None:
    place = sqlite_place(url, "store")
    notifier = notifier_beside(place, ".changes")
    left = notifier.listen()

    async def listen_and_end() -> None:
        await left.__aenter__()

    await asyncio.to_thread(run_in_thread, listen_and_end())
    notifier.notify()


async def test_one_leads_at_a_time(url: str) -> None:
    place = sqlite_place(url, "inbox")
    led = asyncio.Event()

    async def second() -> None:
        async with leader_lock_beside(sqlite_place(url, "inbox"), ".relay"):
            led.set()

    async with (
        asyncio.TaskGroup() as tasks,
        leader_lock_beside(place, ".relay"),
        leader_lock_beside(place, ".reporter"),
    ):
        tasks.create_task(second())
        await asyncio.sleep(0)
        assert not led.is_set()
    assert led.is_set()
