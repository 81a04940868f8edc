"""The inbox on real SQLite."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from zstandard import ZstdDecompressor

from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_forge.inbox.keep import keep_all
from solstice_forge.inbox.protocol import Decision, Kept, NewDelivery
from solstice_forge.inbox.sqlite import SqliteInbox


def delivery(name: str, *, key: str | None = None, source: str = "forgejo", asks: bool = True) -> NewDelivery:
    return NewDelivery(
        source_name=source,
        delivery_id=name,
        event_name="push",
        received_at=1_790_000_000.0,
        headers={"x-forgejo-event": "push"},
        body=b"{}",
        reason="push" if asks else "ping",
        detail="",
        content_key=(key or f"key of {name}") if asks else None,
        request_id=f"request of {source} {name}" if asks else None,
        request=b'{"a":1}' if asks else None,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'inbox.db'}"


@pytest.fixture
async def inbox(url: str) -> AsyncIterator[SqliteInbox]:
    async with SqliteInbox.open(url) as opened:
        yield opened


async def test_kept_request_is_pending_also_after_the_end(url: str) -> None:
    async with SqliteInbox.open(url) as inbox:
        kept = await inbox.keep(delivery("d-1"))
        assert (kept.decision, kept.reason, kept.request_ids) == (
            Decision.ACCEPTED,
            "push",
            ("request of forgejo d-1",),
        )
    async with SqliteInbox.open(url) as inbox:
        (pending,) = await inbox.pending(10)
        assert (pending.request_id, pending.request, pending.attempts) == (
            "request of forgejo d-1",
            b'{"a":1}',
            0,
        )


async def test_pending_is_in_the_order_kept(inbox: SqliteInbox) -> None:
    for number in range(30):
        await inbox.keep(delivery(f"d-{number}"))
    first = await inbox.pending(20)
    assert [one.request_id for one in first] == [f"request of forgejo d-{number}" for number in range(20)]
    assert await inbox.backlog() == 30


async def test_same_delivery_is_a_duplicate_with_the_first_ones_request(inbox: SqliteInbox) -> None:
    first = await inbox.keep(delivery("d-1"))
    again = await inbox.keep(delivery("d-1", key="another"))
    assert (again.decision, again.reason) == (Decision.DUPLICATE, "duplicate_delivery")
    assert again.request_ids == first.request_ids
    assert await inbox.backlog() == 1


async def test_same_content_by_another_hook_is_a_duplicate(inbox: SqliteInbox) -> None:
    first = await inbox.keep(delivery("d-1", key="k"))
    second = await inbox.keep(delivery("d-2", key="k", source="forgejo-org"))
    assert (second.decision, second.reason) == (Decision.DUPLICATE, "duplicate_content")
    assert second.request_ids == first.request_ids
    assert await inbox.backlog() == 1


async def test_same_delivery_id_of_another_source_is_another_delivery(inbox: SqliteInbox) -> None:
    await inbox.keep(delivery("d-1"))
    other = await inbox.keep(delivery("d-1", source="gitea", key="k"))
    assert other.decision is Decision.ACCEPTED


async def test_fifty_copies_at_once_are_one(inbox: SqliteInbox) -> None:
    kept = await asyncio.gather(*(inbox.keep(delivery("d-1")) for _ in range(50)))
    decisions = [one.decision for one in kept]
    assert decisions.count(Decision.ACCEPTED) == 1
    assert decisions.count(Decision.DUPLICATE) == 49


async def test_ignored_delivery_is_kept_and_not_pending(inbox: SqliteInbox) -> None:
    kept = await inbox.keep(delivery("d-1", asks=False))
    assert (kept.decision, kept.reason, kept.request_ids) == (Decision.IGNORED, "ping", ())
    again = await inbox.keep(delivery("d-1", asks=False))
    assert (again.decision, again.request_ids) == (Decision.DUPLICATE, ())
    assert await inbox.backlog() == 0


async def test_published_is_pending_no_more_and_the_rest_counts_its_attempts(inbox: SqliteInbox) -> None:
    for name in ("a", "b", "c"):
        await inbox.keep(delivery(name))
    a, b, c = await inbox.pending(10)
    await inbox.published([b.row_id])
    await inbox.not_published([a.row_id, c.row_id], "unroutable")
    await inbox.not_published([c.row_id], "unroutable")
    assert [(one.request_id[-1], one.attempts) for one in await inbox.pending(10)] == [("a", 1), ("c", 2)]
    assert (await inbox.keep(delivery("b"))).decision is Decision.DUPLICATE


async def test_keeping_wakes_every_process_that_listens(url: str) -> None:
    async with (
        SqliteInbox.open(url) as here,
        SqliteInbox.open(url) as there,
        here.changes() as heard_here,
        there.changes() as heard_there,
        asyncio.timeout(10),
    ):
        await here.keep(delivery("d-1"))
        await heard_here.wait()
        await heard_there.wait()
        assert await there.backlog() == 1


async def test_one_relays_at_a_time(url: str) -> None:
    order: list[str] = []

    async def relay(inbox: SqliteInbox, name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with inbox.relaying():
            order.append(f"{name} in")
            entered.set()
            await leave.wait()
            order.append(f"{name} out")

    entered = {name: asyncio.Event() for name in "ab"}
    leave = asyncio.Event()
    async with SqliteInbox.open(url) as a, SqliteInbox.open(url) as b, asyncio.TaskGroup() as tasks:
        tasks.create_task(relay(a, "a", entered["a"], leave))
        await entered["a"].wait()
        tasks.create_task(relay(b, "b", entered["b"], leave))
        await b.keep(delivery("d-1"))
        assert not entered["b"].is_set()
        leave.set()
    assert order == ["a in", "a out", "b in", "b out"]


async def test_locked_file_is_unavailable_and_comes_back(tmp_path: Path, url: str) -> None:
    async with SqliteInbox.open(url, busy_seconds=0.05) as inbox:
        await inbox.keep(delivery("d-0"))
        with closing(sqlite3.connect(tmp_path / "inbox.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                await inbox.keep(delivery("d-1"))
            assert await inbox.backlog() == 1
            other.execute("ROLLBACK")
        assert (await inbox.keep(delivery("d-1"))).decision is Decision.ACCEPTED


async def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        async with SqliteInbox.open(f"sqlite:///{tmp_path / 'file' / 'inbox.db'}"):
            pass


@pytest.mark.parametrize("url", ["sqlite:///", "postgresql://h/d", ""])
async def test_address_of_no_file_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///FILE|no name of a file"):
        async with SqliteInbox.open(url):
            pass


async def test_keeping_never_walks_through_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def watched(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> Sequence[Kept]:
        connection.set_trace_callback(statements.append)
        try:
            return keep_all(connection, deliveries)
        finally:
            connection.set_trace_callback(None)

    monkeypatch.setattr("solstice_forge.inbox.sqlite.keep_all", watched)
    async with SqliteInbox.open(f"sqlite:///{tmp_path}/inbox.sqlite3") as inbox:
        await asyncio.gather(*(inbox.keep(delivery(f"d{number}")) for number in range(3)))
    queries = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(queries) >= 2
    with closing(sqlite3.connect(tmp_path / "inbox.sqlite3")) as connection:
        plans = [str(row) for query in queries for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert [plan for plan in plans if "SCAN" in plan and "sqlite_sequence" not in plan] == []


async def test_body_is_kept_whole_in_less_room(url: str, tmp_path: Path) -> None:
    body = b'{"commits": [' + b", ".join(b'{"id": "%040x"}' % number for number in range(200)) + b"]}"
    async with SqliteInbox.open(url) as inbox:
        await asyncio.gather(
            inbox.keep(replace(delivery("long"), body=body)),
            inbox.keep(replace(delivery("nothing", asks=False), body=b"")),
            inbox.keep(replace(delivery("short"), body=b"{}")),
        )
    with closing(sqlite3.connect(tmp_path / "inbox.db")) as connection:
        stored = dict(connection.execute("SELECT delivery_id, body FROM deliveries").fetchall())
    assert len(stored["long"]) < len(body) / 3
    assert stored["nothing"] == b""
    for name, expected in (("long", body), ("short", b"{}")):
        assert ZstdDecompressor().decompress(stored[name]) == expected
