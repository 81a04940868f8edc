"""Notifications of a real PostgreSQL wake their listeners, also after a lost connection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from solstice_common.storage import postgresql_notifier
from solstice_common.storage.postgresql import PostgreSQLDatabase
from tests.servers.postgresql import ScratchDatabase
from tests.servers.proxy import fault_proxy

Pair = tuple[PostgreSQLDatabase, PostgreSQLDatabase]


@pytest.fixture
async def pair(postgresql_database: ScratchDatabase) -> AsyncIterator[Pair]:
    """One database as two processes see it."""
    url = postgresql_database.url
    async with PostgreSQLDatabase.open(url) as one, PostgreSQLDatabase.open(url) as other:
        yield one, other


async def settled(notified: asyncio.Event) -> None:
    """Wait until listening has begun, which notifies as well."""
    await notified.wait()
    notified.clear()


async def test_a_notification_wakes_the_listeners_of_every_process(pair: Pair) -> None:
    one, other = pair
    async with (
        one.listen("jobs") as first, one.listen("jobs") as second, other.listen("jobs") as other_process,
        asyncio.timeout(30),
    ):  # fmt: skip
        for notified in (first, second, other_process):
            await settled(notified)
        for notifier in (one, other):
            notifier.notify("jobs")
            await asyncio.gather(first.wait(), second.wait(), other_process.wait())
            for notified in (first, second, other_process):
                notified.clear()


async def test_channels_notify_apart(pair: Pair) -> None:
    one, other = pair
    async with other.listen("jobs") as jobs, other.listen("logs") as logs, asyncio.timeout(30):
        await settled(jobs)
        await settled(logs)
        one.notify("jobs")
        await jobs.wait()
        one.notify("logs")
        await logs.wait()
        jobs.clear()
        logs.clear()
        one.notify("logs")
        await logs.wait()
        assert not jobs.is_set()


async def test_the_notifier_wakes_itself_at_once_and_only_once(pair: Pair) -> None:
    one, other = pair
    async with one.listen("jobs") as first, other.listen("jobs") as other_process, asyncio.timeout(30):
        await settled(first)
        await settled(other_process)
        one.notify("jobs")
        assert first.is_set()
        first.clear()
        await other_process.wait()
        # The notification of the other process has reached us, too, by the time of its answer.
        other.notify("answer")
        async with one.listen("answer") as answer:
            await answer.wait()
        assert not first.is_set()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The notifications between processes."""
    reported: list[object] = []
    hear = postgresql_notifier.PostgreSQLNotifier._on_notification

    def counted(*message: Any) -> None:
        reported.append(message)
        hear(*message)

    monkeypatch.setattr(postgresql_notifier.PostgreSQLNotifier, "_on_notification", counted)
    return reported


async def test_many_rings_are_few_messages(pair: Pair, events: list[object]) -> None:
    one, other = pair
    async with other.listen("jobs") as other_process, asyncio.timeout(30):
        await settled(other_process)
        for _ in range(1000):
            one.notify("jobs")
        await other_process.wait()
    assert len(events) == 1


async def test_rings_without_end_wake_others_less_often(
    pair: Pair, events: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_notifier, "LONGEST_PAUSE_SECONDS", 0.16)
    one, other = pair
    async with other.listen("jobs") as other_process, asyncio.timeout(30):
        await settled(other_process)
        for _ in range(20):
            one.notify("jobs")
            await asyncio.sleep(0.02)
        # At once, and then 0.02, 0.04, 0.08 and 0.16 seconds apart; never twenty times.
        assert 1 <= len(events) <= 7
        # Once it has been quiet, as at the beginning.
        await asyncio.sleep(0.5)
        before = len(events)
        for _ in range(2):
            other_process.clear()
            one.notify("jobs")
            await other_process.wait()
        assert len(events) == before + 2


async def test_a_lost_connection_rings_and_is_made_again(
    pair: Pair, postgresql_database: ScratchDatabase
) -> None:
    one, other = pair
    async with other.listen("jobs") as other_process, asyncio.timeout(30):
        await settled(other_process)
        assert await asyncio.to_thread(postgresql_database.disconnect) >= 1
        # Once for the loss, once more for the new connection; then notifications arrive as before.
        await settled(other_process)
        while not other_process.is_set():
            one.notify("jobs")
            await asyncio.sleep(0.01)


async def test_what_is_notified_while_the_server_is_away_arrives_when_it_is_back(
    own_postgresql_database: ScratchDatabase,
) -> None:
    server, url = own_postgresql_database.server, own_postgresql_database.url
    async with (
        PostgreSQLDatabase.open(url) as one, PostgreSQLDatabase.open(url) as other, other.listen("jobs") as other_process,
        asyncio.timeout(60),
    ):  # fmt: skip
        await settled(other_process)
        await asyncio.to_thread(server.stop)
        one.notify("jobs")
        # Polling: without a connection the listener is woken again and again.
        await settled(other_process)
        await settled(other_process)
        await asyncio.to_thread(server.start)
        await settled(other_process)


async def test_a_silent_connection_is_asked_whether_it_still_is_one(
    postgresql_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_notifier, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr("solstice_common.storage.postgresql.CONNECT_SECONDS", 0.5)
    url = postgresql_database.url
    async with (
        fault_proxy(url) as proxy,
        PostgreSQLDatabase.open(proxy.url(url)) as behind, PostgreSQLDatabase.open(url) as one,
        behind.listen("jobs") as notified, asyncio.timeout(60),
    ):  # fmt: skip
        await settled(notified)
        proxy.freeze()
        await settled(notified)  # it was noticed
        proxy.pass_through()
        proxy.drop()
        connections = proxy.connections
        while proxy.connections == connections:
            await settled(notified)
        while not notified.is_set():
            one.notify("jobs")
            await asyncio.sleep(0.01)


async def test_leaving_sends_the_notifications_still_owed(postgresql_database: ScratchDatabase) -> None:
    url = postgresql_database.url
    async with (
        PostgreSQLDatabase.open(url) as other,
        other.listen("jobs") as other_process,
        asyncio.timeout(30),
    ):
        await settled(other_process)
        async with PostgreSQLDatabase.open(url) as one:
            one.notify("jobs")
        await other_process.wait()


async def test_a_process_that_neither_listens_nor_rings_holds_no_connection_for_it(
    postgresql_database: ScratchDatabase,
) -> None:
    async with PostgreSQLDatabase.open(postgresql_database.url):
        assert await asyncio.to_thread(postgresql_database.disconnect) == 0
