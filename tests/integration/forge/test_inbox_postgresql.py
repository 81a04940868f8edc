"""The inbox on PostgreSQL through server outages, and with replicas that share it."""

import asyncio
import time
from contextlib import suppress

import asyncpg
import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.storage.postgresql import Connection
from solstice_forge.inbox.log import DeliveryFilter
from solstice_forge.inbox.postgresql import PostgreSQLInbox
from solstice_forge.inbox.postgresql.inbox import LOCK
from solstice_forge.inbox.protocol import Decision
from solstice_orchestrator.store import open_store
from tests.builders import job_request
from tests.inboxes import delivery
from tests.servers.postgresql import ScratchDatabase

WAIT_SECONDS = 120

HOLDERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = ($1::bigint & 4294967295)::oid"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

WAITERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def holder(database: ScratchDatabase) -> int:
    """The server process whose session has the relay's lock."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := database.query(HOLDERS, LOCK)):
        # It may be lost, and taken again, at any time.
        assert time.monotonic() < deadline
    return int(found[0][0])


async def until_pending(inbox: PostgreSQLInbox) -> None:
    """Wait until the inbox returns its pending requests."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(StoreUnavailable):
                if await inbox.pending(10):
                    return
            await asyncio.sleep(0.05)


async def test_relay_whose_connection_is_lost_gives_way_and_says_nothing(
    postgresql_database: ScratchDatabase,
) -> None:
    url = postgresql_database.url
    # Another process, which waits for the lock.
    other = await asyncpg.connect(url)
    try:
        async with PostgreSQLInbox.open(url) as inbox, inbox.relaying():
            await inbox.keep(delivery("d-1"))
            assert len(await inbox.pending(10)) == 1
            waiting = asyncio.create_task(other.execute("SELECT pg_advisory_lock($1)", LOCK))
            own = holder(postgresql_database)
            async with asyncio.timeout(WAIT_SECONDS):
                while not postgresql_database.query(WAITERS):  # noqa: ASYNC110  the server sends no notification
                    await asyncio.sleep(0.02)
                postgresql_database.query("SELECT pg_terminate_backend($1)", own)
                await waiting
                while await inbox.pending(10):  # noqa: ASYNC110  a lost connection sends no notification
                    await asyncio.sleep(0.02)
            await other.execute("SELECT pg_advisory_unlock($1)", LOCK)
            await until_pending(inbox)
    finally:
        await other.close()


async def test_turn_of_a_silent_process_ends(
    postgresql_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To the server, a frozen process is a silent session.
    monkeypatch.setattr("solstice_common.storage.postgresql_leader_lock.IDLE_SECONDS", 1)
    monkeypatch.setattr("solstice_common.storage.postgresql_leader_lock.SPEAK_SECONDS", 3600.0)
    async with PostgreSQLInbox.open(postgresql_database.url) as inbox, inbox.relaying():
        await inbox.keep(delivery("d-1"))
        silent = holder(postgresql_database)
        async with asyncio.timeout(WAIT_SECONDS):
            while (silent,) in [tuple(row) for row in postgresql_database.query(HOLDERS, LOCK)]:  # noqa: ASYNC110  the server sends no notification
                await asyncio.sleep(0.1)
        await until_pending(inbox)


async def test_server_that_was_away_is_used_again(own_postgresql_database: ScratchDatabase) -> None:
    server = own_postgresql_database.server
    async with PostgreSQLInbox.open(own_postgresql_database.url) as inbox, inbox.relaying():
        assert (await inbox.keep(delivery("before"))).decision is Decision.ACCEPTED
        server.stop()
        with pytest.raises(StoreUnavailable):
            await inbox.keep(delivery("meanwhile"))
        server.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with suppress(StoreUnavailable):
                    await inbox.keep(delivery("after"))
                    break
                await asyncio.sleep(0.1)
        await until_pending(inbox)
        names = [one.delivery_id for one in (await inbox.entries(DeliveryFilter(), limit=10)).entries]
        assert set(names) == {"before", "after"}


async def test_two_schemas_share_a_database(postgresql_database: ScratchDatabase) -> None:
    url = postgresql_database.url
    for _ in range(2):
        async with open_store(url) as store, PostgreSQLInbox.open(url) as inbox:
            await store.admit([job_request()])
            await inbox.keep(delivery("d-1"))


async def test_delivery_is_not_kept_waiting_by_a_lock(
    postgresql_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_forge.inbox.postgresql.inbox.KEEP_SECONDS", 0.5)
    async with (
        PostgreSQLInbox.open(postgresql_database.url) as inbox,
        PostgreSQLInbox.open(postgresql_database.url) as other,
    ):
        locked, leave = asyncio.Event(), asyncio.Event()

        async def lock() -> None:
            async def work(connection: Connection) -> None:
                await connection.execute("LOCK TABLE inbox_deliveries")
                locked.set()
                await leave.wait()

            await other._database.transaction(work)

        locking = asyncio.create_task(lock())
        await locked.wait()
        with pytest.raises(StoreUnavailable, match="no answer within"):
            await inbox.keep(delivery("d-1"))
        leave.set()
        await locking
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with suppress(StoreUnavailable):
                    await inbox.keep(delivery("d-2"))
                    break


async def test_delivery_is_not_lost_with_another_one_of_its_id_without_content(
    postgresql_database: ScratchDatabase,
) -> None:
    async with PostgreSQLInbox.open(postgresql_database.url) as inbox:
        group = [delivery("one"), delivery("two", key="key of one"), delivery("two")]
        stored = await asyncio.gather(*(inbox.keep(each) for each in group))
        assert [one.decision for one in stored] == [Decision.ACCEPTED, Decision.DUPLICATE, Decision.ACCEPTED]
        assert await inbox.backlog() == 2
