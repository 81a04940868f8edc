"""Writes the databases of a release as SQL text, and loads them."""

import sqlite3
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import asyncpg

FILES: Final = ("store.db", "inbox.db", "inbox.db.statuses", "broker.db")
"""The SQLite files of an installation."""
OF_THE_TOOL: Final = ("--", "SET ", "\\", "SELECT pg_catalog.set_config", "CREATE SCHEMA", "ALTER SCHEMA")
"""Beginnings of lines that describe the server and the tool, and differ between versions."""


def dump_file(database: Path) -> str:
    """A SQLite file as SQL."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def load_file(sql: Path, database: Path) -> None:
    """Make a SQLite file of that SQL."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(sql.read_text("utf-8"))
        connection.execute("PRAGMA journal_mode = WAL")


def dump_server(programs: Path, url: str) -> str:
    """A PostgreSQL database as SQL without anything of its server."""
    dumped = subprocess.run(
        [programs / "pg_dump", "--inserts", "--no-owner", "--no-privileges", "--no-comments", url],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return "\n".join(_without_tool(dumped.splitlines())) + "\n"


async def load_server(sql: str, url: str) -> None:
    """Fill an empty PostgreSQL database with that SQL."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def _without_tool(lines: Iterable[str]) -> Iterable[str]:
    return (line for line in lines if line and not line.startswith(OF_THE_TOOL))
