"""Begins PostgreSQL transactions with their first statement, which saves a round trip.

No code needs the answer to `BEGIN` at once, so it is sent together with the next statement. asyncpg cannot
send without waiting for the answer, so we write to its transport: this module alone relies on its inside.
pyproject.toml bounds its version, `tests/unit/common/storage/test_postgresql_transaction.py` fails when the
inside changes, and `SOLSTICE_PUBLIC_INTERFACES=asyncpg` waits for the answer.

Source: postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY: the server executes messages
in order, and answers them up to the next Sync.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final

from solstice_common.runtime.public_interfaces import public_only
from solstice_common.storage.postgresql_connections import Connection, is_closed, undo


class TransactionMode(Enum):
    """How a transaction begins."""

    WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED"
    READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


@asynccontextmanager
async def transaction(connection: Connection, mode: TransactionMode) -> AsyncIterator[None]:
    """Run a block as a transaction: it takes effect completely or not at all.

    It is durable when the block is left; any exception rolls it back. It begins with the first statement.
    Raises `CONNECTION_ERRORS`.
    """
    try:
        if public_only("asyncpg"):
            await connection.execute(mode.value)
        else:
            # The pool's proxy has the attributes of its connection, which its type does not show.
            connection._transport.write(_MESSAGES[mode])  # type: ignore[attr-defined]  # noqa: SLF001  see the top
        yield
    except BaseException:
        if not is_closed(connection):
            await undo(connection)
        raise
    if await connection.execute("COMMIT") != "COMMIT":
        raise RuntimeError("a transaction was to be committed of which a statement had failed")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _unanswered(statement: bytes) -> bytes:
    """Parse, Bind and Execute of a statement without arguments, and no Sync. Source: protocol-message-formats.html."""
    no_name, none = b"\0", bytes(2)
    return (
        _message(b"P", no_name + statement + b"\0" + none)
        + _message(b"B", no_name + no_name + none + none + none)
        + _message(b"E", no_name + bytes(4))
    )


_MESSAGES: Final = {mode: _unanswered(mode.value.encode()) for mode in TransactionMode}
