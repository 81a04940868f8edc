"""One SQLite database whose calls are committed in groups.

Calls that arrive during one commit form the next.

The embedded broker, the inbox and the job store all use this. A write is durable when its call returns (WAL,
`synchronous=FULL`); a group costs one fsync however many calls it holds. A group of asynchronous calls costs none
(`synchronous=NORMAL`): it survives the death of this process, and a power cut once a later group is durable. Several
processes may share a file: SQLite's own lock serialises their groups. In memory nothing is durable, and the rest holds.

Source: sqlite.org/wal.html, sqlite.org/lang_transaction.html (errors that end a transaction),
sqlite.org/pragma.html#pragma_synchronous.
"""

import asyncio
import contextlib
import queue
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from solstice_common.errors import StoreUnavailable
from solstice_common.storage.migrations import Migration, migrations_of
from solstice_common.storage.sqlite_connections import named, open_connections
from solstice_common.storage.sqlite_place import MemoryPlace, SqlitePlace

__all__ = ["Migration", "SqliteDatabase", "Work", "insert_many", "migrations_of"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""Runs in the database's thread, inside a transaction it neither begins nor ends.

Returns plain values.

It may run once more when another call of its group failed, so it uses only the connection.
"""

BUSY_TIMEOUT_SECONDS: Final = 10.0
ROWS_PER_STATEMENT: Final = 64
"""The most variables of a statement, far below SQLite's limit."""
MAX_GROUP: Final = 1024
SWITCH_SECONDS: Final = 0.0001
"""Seconds one thread may keep the interpreter when another wants it.

Python's own default is 5 ms.

SQLite's module gives it up at every statement. Against a busy event loop the writing thread would wait 5 ms to get
it back each time, and a group of 64 rows would take a second instead of some milliseconds.
"""


@dataclass(slots=True, eq=False)
class _Call:
    work: Work[Any]
    future: "asyncio.Future[Any]"
    synchronous: bool = True


_FULL: Final = "PRAGMA synchronous = FULL"
_NORMAL: Final = "PRAGMA synchronous = NORMAL"
_WAKE: Final = _Call(lambda _: None, cast("asyncio.Future[Any]", None))
"""A call that only ends the wait of the callers of `write_along`."""
_Settled = tuple[_Call, Any, BaseException | None]
_Calls = queue.SimpleQueue[_Call | None]


class SqliteDatabase:
    """Open with `SqliteDatabase.open`.

    `write`, `submit` and `read` are called from any task of the loop that opened it.
    """

    def __init__(self, place: SqlitePlace, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        self._loop = loop
        self._writes: _Calls = queue.SimpleQueue()
        self._reads: _Calls = queue.SimpleQueue()
        self._patient: deque[_Call] = deque()
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        place: SqlitePlace,
        migrations: Sequence[Migration] = (),
        *,
        busy_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> AsyncIterator["SqliteDatabase"]:
        """Open or create the database, update its schema, and serve calls until left.

        `busy_seconds` bounds the wait for another process's write. Leaving executes the calls made so far;
        later calls raise StoreUnavailable. Raises StoreUnavailable, SchemaTooNew, ConfigurationError.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        database = cls(place, asyncio.get_running_loop())
        writer, reader = await asyncio.to_thread(open_connections, place, migrations, busy_seconds)
        threads = [
            threading.Thread(
                target=database._serve_writes, args=(writer,), name=f"sqlite-write:{place.name}", daemon=True
            ),
            threading.Thread(
                target=database._serve_reads, args=(reader,), name=f"sqlite-read:{place.name}", daemon=True
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            yield database
        finally:
            database._closed = True
            database._writes.put(None)
            database._reads.put(None)
            for thread in threads:
                await asyncio.to_thread(thread.join)

    async def write(self, work: Work[T], *, synchronous: bool = True) -> T:
        """Run `work` in the next group's transaction; return its result once durable.

        Work that is not `synchronous` does not wait for the disk: after a power cut it may not have been done,
        and nor then has anything later. An exception of `work` rolls back only `work` and is raised here.
        StoreUnavailable: nothing was changed. A caller that is cancelled cannot know whether its work was done.
        """
        return await self._ask(self._writes, work, synchronous=synchronous)

    def submit(self, work: Work[T]) -> "asyncio.Future[T]":
        """`write`, begun now and awaited later; calls take effect in the order submitted."""
        return self._ask(self._writes, work)

    async def write_along(self, work: Work[T], *, within_seconds: float) -> T:
        """Asynchronous `write` with the next group of another call; alone only after `within_seconds`.

        For writes that no caller waits for: on a busy database they cost no commit of their own. They may
        take effect after later calls.
        """
        self._refuse_when_closed()
        future: asyncio.Future[T] = self._loop.create_future()
        self._patient.append(_Call(work, future, synchronous=False))
        timer = self._loop.call_later(within_seconds, self._writes.put, _WAKE)
        try:
            return await future
        finally:
            timer.cancel()

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a read-only connection, beside the writes; it sees whole groups only."""
        return await self._ask(self._reads, work)

    def _ask(self, calls: _Calls, work: Work[T], *, synchronous: bool = True) -> "asyncio.Future[T]":
        self._refuse_when_closed()
        future: asyncio.Future[T] = self._loop.create_future()
        calls.put(_Call(work, future, synchronous))
        return future

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable(str(self.place), "it was closed")

    def _serve_writes(self, connection: sqlite3.Connection) -> None:
        with contextlib.closing(connection):
            while (group := _next_group(self._writes, self._patient)) is not None:
                self._answer(_commit_group(connection, self.place, group))

    def _serve_reads(self, connection: sqlite3.Connection) -> None:
        with contextlib.closing(connection):
            while (group := _next_group(self._reads, deque())) is not None:
                for call in group:
                    if not call.future.cancelled():
                        with _alone(self.place):
                            settled = _read(connection, self.place, call)
                        self._answer([settled])

    def _answer(self, settled: Sequence[_Settled]) -> None:
        # One wake-up of the loop for the whole group. On a closed loop, no task waits for an answer.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, settled)


def insert_many(
    connection: sqlite3.Connection, head: str, rows: Sequence[tuple[Any, ...]], tail: str = ""
) -> int:
    """Insert rows in as few statements as possible; return how many were inserted.

    Python's SQLite module releases the interpreter lock once per row of `executemany`, and has to get it back
    from a busy event loop each time; for a statement with many rows it does so once.
    """
    inserted = 0
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        group = rows[start : start + ROWS_PER_STATEMENT]
        marks = ",".join(["(" + ",".join("?" * len(group[0])) + ")"] * len(group))
        values = [value for row in group for value in row]
        inserted += connection.execute(f"{head} {marks} {tail}", values).rowcount
    return inserted


def _next_group(calls: _Calls, patient: deque[_Call]) -> list[_Call] | None:
    """Wait for a call; return it with all others that wait.

    None means: there are no more calls.
    """
    group: list[_Call] = []
    call = calls.get()
    while call is not None:
        if call is not _WAKE:
            group.append(call)
        if len(group) == MAX_GROUP:
            break
        try:
            call = calls.get_nowait()
        except queue.Empty:
            break
    while patient:
        group.append(patient.popleft())
    if call is None:
        if not group:
            return None
        calls.put(None)
    return group


def _commit_group(
    connection: sqlite3.Connection, place: SqlitePlace, group: Sequence[_Call]
) -> Sequence[_Settled]:
    """Commit the group in one transaction.

    When one of its calls fails, each gets a transaction of its own, so that it fails alone.
    """
    calls = [call for call in group if not call.future.cancelled()]
    with _alone(place):
        if len(calls) > 1 and (settled := _commit(connection, place, calls)) is not None:
            return settled
        return [each for call in calls for each in _commit(connection, place, [call]) or ()]


def _commit(
    connection: sqlite3.Connection, place: SqlitePlace, calls: Sequence[_Call]
) -> Sequence[_Settled] | None:
    """Return the outcomes of the calls, in one transaction.

    None, and nothing was done, when one of several failed.

    Without savepoints: failures are rare, and savepoints would cost every call two more statements.
    """
    settled: list[_Settled] = []
    try:
        # A script is never cached: this takes effect when it is compiled, and a cached statement would have none.
        connection.executescript(_FULL if any(call.synchronous for call in calls) else _NORMAL)
        connection.execute("BEGIN IMMEDIATE")
        for call in calls:
            try:
                settled.append((call, call.work(connection), None))
            except BaseException as error:  # noqa: BLE001  the caller gets any error
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                return [(call, None, named(place, error))] if len(calls) == 1 else None
        connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001  every caller gets it; the thread must live
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        return [(call, None, StoreUnavailable(str(place), str(error))) for call in calls]
    return settled


def _read(connection: sqlite3.Connection, place: SqlitePlace, call: _Call) -> _Settled:
    try:
        connection.execute("BEGIN")
        try:
            return call, call.work(connection), None
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    except BaseException as error:  # noqa: BLE001  the caller gets any error
        return call, None, named(place, error)


def _alone(place: SqlitePlace) -> AbstractContextManager[object]:
    """Exclude other transactions, where SQLite's own lock would be polled for."""
    return place.transaction if isinstance(place, MemoryPlace) else contextlib.nullcontext()


def _settle(settled: Iterable[_Settled]) -> None:
    for call, result, failure in settled:
        if call.future.done():
            continue  # its caller was cancelled
        if failure is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(failure)
