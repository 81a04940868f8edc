"""Brokers, stores and inboxes in memory, for suites that run on each."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache

from solstice_orchestrator.store import open_store
from tests.servers.own_thread import run_in_thread

KINDS = ("broker", "store", "inbox", "statuses")


@contextmanager
def memory_url() -> Iterator[str]:
    """A `memory:` URL that only this test uses.

    What it names exists until the end, as in a process that has it open; a test may close and open it meanwhile.
    """
    name = uuid.uuid4().hex
    with ExitStack() as connections:
        for kind in KINDS:
            connections.enter_context(closing(_connection(kind, name)))
        yield f"memory:{name}"


@contextmanager
def memory_store_url() -> Iterator[str]:
    """Such a URL of a job store, whose schema is there already."""
    with memory_url() as url, closing(sqlite3.connect(":memory:")) as schema:
        schema.deserialize(_schema())
        with closing(_connection("store", url.removeprefix("memory:"))) as store:
            schema.backup(store)
        yield url


@cache
def _schema() -> bytes:
    """A SQLite store without runs."""

    async def open_and_close(url: str) -> None:
        async with open_store(url):
            pass

    with memory_url() as url, closing(_connection("store", url.removeprefix("memory:"))) as store:
        run_in_thread(open_and_close(url))
        return store.serialize()


def _connection(kind: str, name: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:/{kind}/{name}?vfs=memdb", uri=True)
