"""The yardsticks beside the embedded broker: plain sqlite3, as its documentation shows it.

They are those of `yardsticks`, with the same arguments. Each is as durable as ours, and knows no exchanges, processes
or dead letters.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

PLAIN = ".plain"


@contextmanager
def _opened(url: str, suffix: str = "") -> Iterator[sqlite3.Connection]:
    """The embedded broker's file, or one beside it, synced at every commit."""
    path = f"{url.removeprefix('sqlite:///')}{suffix}"
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")
        yield opened


async def declare(url: str, _exchange: str, _queue: str, _routing_key: str) -> None:
    """A table for the messages of all queues, in a file of its own."""
    with _opened(url, PLAIN) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS messages (message INTEGER PRIMARY KEY, queue TEXT NOT NULL, body BLOB NOT NULL)"
        )
        database.execute("CREATE INDEX IF NOT EXISTS of_queue ON messages (queue, message)")


async def publish(url: str, queue: str, _routing_key: str, bodies: Sequence[bytes], in_flight: int) -> float:
    """Insert all, `in_flight` in each transaction; return the seconds."""
    return await asyncio.to_thread(_insert, url, queue, bodies, in_flight)


async def consume(url: str, queue: str, count: int, prefetch: int) -> None:
    """Take `count` messages of the broker's file, and delete each batch in a transaction."""
    await asyncio.to_thread(_take, url, queue, count, prefetch)


def _insert(url: str, queue: str, bodies: Sequence[bytes], in_flight: int) -> float:
    with _opened(url, PLAIN) as database:
        began = time.perf_counter()
        for first in range(0, len(bodies), in_flight):
            group = bodies[first : first + in_flight]
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT INTO messages (queue, body) VALUES (?, ?)", [(queue, each) for each in group]
            )
            database.execute("COMMIT")
        return time.perf_counter() - began


def _take(url: str, queue: str, count: int, prefetch: int) -> None:
    with _opened(url) as database:
        while count:
            rows = database.execute(
                "SELECT message, body FROM messages WHERE queue_id = (SELECT queue_id FROM queues WHERE name = ?)"
                " ORDER BY message LIMIT ?",
                (queue, prefetch),
            ).fetchall()
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM messages WHERE message = ?", [row[:1] for row in rows])
            database.execute("COMMIT")
            count -= len(rows)
