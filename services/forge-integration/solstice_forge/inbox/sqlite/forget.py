"""Removes old bodies and deliveries from the inbox, in SQLite."""

import sqlite3
from typing import Final

import orjson

from solstice_forge.inbox.sweeping import SweepResult, step

_TO_STRIP: Final = "SELECT row_id, received_at FROM deliveries WHERE row_id > (SELECT stripped_to FROM sweep_cursor) ORDER BY row_id LIMIT ?"
_WAITS: Final = (
    "EXISTS (SELECT 1 FROM requests WHERE requests.row_id = deliveries.row_id AND published = 0)"
    " OR EXISTS (SELECT 1 FROM lookups WHERE lookups.row_id = deliveries.row_id AND due_at IS NOT NULL)"
)
_OLDEST: Final = f"SELECT row_id, received_at FROM deliveries WHERE NOT ({_WAITS}) ORDER BY row_id LIMIT ?"  # noqa: S608  made of constants
_OLDEST_COPIES: Final = "SELECT row_id, received_at FROM repeats ORDER BY row_id LIMIT ?"
_LISTED: Final = "(SELECT value FROM json_each(?))"
_COUNT: Final = (
    f"SELECT (SELECT count(*) FROM deliveries WHERE received_at < ?1 AND NOT ({_WAITS}))"  # noqa: S608  made of constants
    " + (SELECT count(*) FROM repeats WHERE received_at < ?1)"
)


def strip(connection: sqlite3.Connection, before: float, limit: int) -> SweepResult:
    expired = step([(row[0], row[1]) for row in connection.execute(_TO_STRIP, (limit,))], before, limit)
    if expired.old:
        connection.execute(
            f"UPDATE deliveries SET body = x'', headers = '{{}}' WHERE row_id IN {_LISTED}",  # noqa: S608  made of constants
            (orjson.dumps(expired.old).decode(),),
        )
    if expired.up_to is not None:
        connection.execute("UPDATE sweep_cursor SET stripped_to = ?", (expired.up_to,))
    return SweepResult(rows=len(expired.old), more=expired.more)


def forget(connection: sqlite3.Connection, before: float, limit: int) -> SweepResult:
    deliveries = step([(row[0], row[1]) for row in connection.execute(_OLDEST, (limit,))], before, limit)
    copies = step([(row[0], row[1]) for row in connection.execute(_OLDEST_COPIES, (limit,))], before, limit)
    for table, expired in (
        ("aliases", deliveries),
        ("requests", deliveries),
        ("lookups", deliveries),
        ("request_traces", deliveries),
        ("deliveries", deliveries),
        ("repeats", copies),
    ):
        connection.execute(
            f"DELETE FROM {table} WHERE row_id IN {_LISTED}",  # noqa: S608  made of constants
            (orjson.dumps(expired.old).decode(),),
        )
    return SweepResult(rows=len(deliveries.old) + len(copies.old), more=deliveries.more or copies.more)


def forgettable(connection: sqlite3.Connection, before: float) -> int:
    return int(connection.execute(_COUNT, (before,)).fetchone()[0])
