"""The inbox in a SQLite file: the file, its locks and its indexes."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from zstandard import ZstdDecompressor

from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.storage.migrations import migrate, migrations_of
from solstice_forge.inbox.log import DeliveryFilter
from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery
from solstice_forge.inbox.sqlite.inbox import SqliteInbox
from solstice_forge.inbox.sqlite.keep import keep_all
from tests.inboxes import delivery


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'inbox.db'}"


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


async def test_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is no directory"):
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

    def watched(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult]:
        connection.set_trace_callback(statements.append)
        try:
            return keep_all(connection, deliveries)
        finally:
            connection.set_trace_callback(None)

    monkeypatch.setattr("solstice_forge.inbox.sqlite.inbox.keep_all", watched)
    async with SqliteInbox.open(f"sqlite:///{tmp_path}/inbox.sqlite3") as inbox:
        for _ in range(2):  # again, for the queries that only repeated deliveries cause
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


async def test_inbox_of_the_first_version_is_taken_over(url: str, tmp_path: Path) -> None:
    first, *_ = migrations_of("solstice_forge.inbox.schema.sqlite")
    path = tmp_path / "inbox.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        migrate(connection, path, [first])
        for row_id, request_id in ((1, "r-1"), (2, None)):
            connection.execute(
                "INSERT INTO deliveries VALUES (?, 'gitea', ?, 'push', 1.0, 'push', '', ?, '{}', x'')",
                (row_id, f"d-{row_id}", request_id),
            )
        connection.execute(
            "INSERT INTO requests (row_id, content_key, request_id, request) VALUES (1, 'k', 'r-1', ?)",
            (b'{"repo_full_name":"harbour/lighthouse"}',),
        )
    async with SqliteInbox.open(url) as inbox:
        assert (await inbox.keep(delivery("d-1", source="gitea"))).decision is Decision.DUPLICATE
        listed = (await inbox.entries(DeliveryFilter(), limit=10)).entries
    assert [(one.delivery_id, one.decision.value, one.repo_full_name) for one in listed] == [
        ("d-1", "duplicate", "harbour/lighthouse"),
        ("d-2", "ignored", None),
        ("d-1", "accepted", "harbour/lighthouse"),
    ]
