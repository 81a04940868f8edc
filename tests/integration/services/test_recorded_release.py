"""What is recorded of the previous release is what its code writes."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from solstice_common.storage.migrations import migrations_of
from tests.releases.databases import FILES, load_file
from tests.releases.record import RECORDED, fill_files
from tests.releases.release_code import ABSENT, is_in_history, unpack

SCHEMAS: Final = {
    "store.db": "solstice_orchestrator.store.schema.sqlite",
    "inbox.db": "solstice_forge.inbox.schema.sqlite",
    "inbox.db.statuses": "solstice_forge.statuses.schema.sqlite",
    "broker.db": "solstice_common.broker.embedded.schema",
}


def tables(database: Path) -> Mapping[str, tuple[str, int]]:
    """The definition and the number of rows of each table."""
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        return {
            name: (sql, connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])  # noqa: S608  its own names
            for name, sql in found
        }


@pytest.mark.parametrize("name", FILES)
def test_its_schema_is_an_older_one_of_ours(tmp_path: Path, name: str) -> None:
    load_file(RECORDED / f"{name}.sql", tmp_path / name)
    with closing(sqlite3.connect(tmp_path / name)) as connection:
        applied = dict(connection.execute("SELECT version, checksum FROM schema_migrations"))
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ours = {each.version: each.checksum for each in migrations_of(SCHEMAS[name])}
    assert applied
    assert applied.items() <= ours.items()


def test_both_databases_hold_the_same(tmp_path: Path) -> None:
    load_file(RECORDED / "store.db.sql", tmp_path / "store.db")
    text = (RECORDED / "postgresql.sql").read_text("utf-8")
    found = tables(tmp_path / "store.db")
    # The other tables are not alike: PostgreSQL has the last attempt of a job in its row, for example.
    for name in ("requests", "runs", "jobs", "schedules", "ticks"):
        assert text.count(f"INSERT INTO public.{name} ") == found[name][1] > 0, name
    one, other = (
        json.loads((RECORDED / f"{kind}.json").read_text("utf-8")) for kind in ("sqlite", "postgresql")
    )
    assert one["runs"].keys() == other["runs"].keys()
    assert one["schedules"] == other["schedules"]


# Nothing else is asked for in a clone without that commit: what it wrote is recorded.
@pytest.mark.skipif(not is_in_history(), reason=ABSENT)
def test_the_code_of_the_release_writes_it_again(tmp_path: Path) -> None:
    code, again, recorded = unpack(tmp_path / "code"), tmp_path / "again", tmp_path / "recorded"
    again.mkdir()
    recorded.mkdir()
    fill_files(code, again, tmp_path / "out.json")
    for name in FILES:
        load_file(RECORDED / f"{name}.sql", recorded / name)
        assert tables(again / name) == tables(recorded / name)
