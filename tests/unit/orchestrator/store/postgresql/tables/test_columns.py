"""PostgreSQL's columns have the order of their values and the types of the schema."""

import re
import sqlite3
from collections.abc import Sequence

import pytest

from solstice_common.storage.migrations import migrations_of
from solstice_orchestrator.store.outbox.batches import OutboxBatch
from solstice_orchestrator.store.postgresql.tables.columns import ATTEMPT, BEGUN_AT, JOB, NOW, RUN, type_of
from solstice_orchestrator.store.records.changes import RUN_CHANGES, Attempt, Job, RefRun, Run

TYPES = "text|integer|bigint|double precision|boolean|bytea"
WRITTEN = {
    "runs": ("run_id", *RUN_CHANGES),
    "jobs": (*Job.__struct_fields__, "spec"),
    "attempts": Attempt._fields,
    "outbox": OutboxBatch._fields,
    "ref_runs": RefRun._fields,
}


def schema_types(table: str) -> dict[str, str]:
    """The types of a table's columns, as the migrations give them."""
    found: dict[str, dict[str, str]] = {}
    for migration in migrations_of("solstice_orchestrator.store.schema.postgresql"):
        text = re.sub(r"--[^\n]*", "", migration.sql)
        for name, body in re.findall(r"(?:CREATE|ALTER) TABLE (\w+)([^;]*);", text):
            columns = found.setdefault(name, {})
            columns |= dict(re.findall(rf"(?:^\s+|ADD COLUMN )(\w+) +({TYPES})\b", body, re.MULTILINE))
            for old, new in re.findall(r"RENAME COLUMN (\w+) TO (\w+)", body):
                columns[new] = columns.pop(old)
            for new in re.findall(r"RENAME TO (\w+)", body):
                found[new] = found.pop(name)
    return found[table]


@pytest.mark.parametrize(("table", "columns"), WRITTEN.items(), ids=WRITTEN)
def test_each_column_that_is_written_has_the_type_of_the_schema(table: str, columns: Sequence[str]) -> None:
    types = schema_types(table)
    assert {name: type_of(name) for name in columns} == {name: types[name] for name in columns}


@pytest.mark.parametrize(
    ("columns", "fields"),
    [(RUN, Run.__struct_fields__), (JOB, Job.__struct_fields__), (ATTEMPT, Attempt._fields)],
    ids=["run", "job", "attempt"],
)
def test_columns_are_read_in_the_order_of_the_fields(columns: str, fields: Sequence[str]) -> None:
    assert tuple(re.split(r"\.| AS ", each)[-1] for each in columns.split(", ")) == fields


def test_facts_of_the_request_are_read_from_its_table() -> None:
    tables = {each.split(".")[1].split()[0]: each.split(".")[0] for each in RUN.split(", ")}
    assert {name for name, table in tables.items() if table == "requests"} == {
        "repository",
        "created_at",
        "body",
    }
    assert set(tables.values()) == {"runs", "requests"}


def test_the_clock_goes_on_within_a_transaction() -> None:
    assert "clock_timestamp()" in NOW


def test_a_run_of_one_job_began_with_it_where_its_row_does_not_say_so() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(
        """
        CREATE TABLE runs (run_id, state, job_count);
        CREATE TABLE jobs (run_id, state, started_at);
        INSERT INTO runs VALUES ('begun', 'waiting', 1), ('waits', 'waiting', 1), ('several', 'waiting', 2),
            ('says so', 'running', 1);
        INSERT INTO jobs VALUES ('begun', 'running', 7.0), ('waits', 'waiting', 6.0), ('several', 'running', 5.0),
            ('says so', 'running', 4.0);
        """
    )
    found = dict(database.execute(f"SELECT run_id, {BEGUN_AT} FROM runs"))  # noqa: S608  our own text
    assert found == {"begun": 7.0, "waits": None, "several": None, "says so": None}
