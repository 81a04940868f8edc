"""Renders when rows of each table are removed, of every table."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from solstice_common.storage.migrations import migrate, migrations_of
from tests.database_tables import SCHEMAS, columns_of, migrated
from tests.markdown import table

RUN: Final = "with its run"
DELIVERY: Final = "with its delivery"
FIXED: Final = "does not grow: one row, or one for each part of the configuration"

RETENTION: Final[Mapping[str, Mapping[str, str]]] = {
    "store": {
        "runs": "`RETENTION_DAYS` after the run ended",
        **dict.fromkeys(
            (
                *("requests", "request_aliases", "jobs", "attempts", "run_traces"),
                *("log_chunks", "log_marks", "service_log_chunks", "test_reports", "outputs"),
            ),
            RUN,
        ),
        "artifacts": "after the `retention` of the artifact, with its run at the latest; the archive an hour later",
        "ref_runs": "after `RETENTION_DAYS`, at least 30 days",
        "cancels": "after `RETENTION_DAYS`",
        "outbox": "when the broker has confirmed it",
        "outbox_lease": FIXED,
        "workers": "a day after the worker was last seen, or when another of its name has taken its place",
        "next_tags": "when no job of that label and class waits",
        "clocks": "does not grow: one row for each label and class",
        "start_buckets": "a minute after the bucket is full again",
        "owner_starts": "a minute after it no longer counts",
        "schedules": "when a person removes the schedule",
        "ticks": "after `RETENTION_DAYS`; each schedule keeps its newest",
        "schema_migrations": "does not grow: one row for each migration",
    },
    "inbox": {
        "deliveries": "bodies after `FORGE_RETENTION_DAYS`, all of it after `FORGE_MEMORY_DAYS`",
        **dict.fromkeys(("requests", "request_traces", "aliases", "lookups"), DELIVERY),
        "repeats": "after `FORGE_MEMORY_DAYS`",
        "sweep_cursor": FIXED,
        "reconcile_cursor": FIXED,
        "reconcile_kinds": "stays: one row for each repository and kind of event",
        "reconcile_heads": "when two comparisons do not find the branch or pull request on the forge",
        "reconcile_hooks": FIXED,
        "reconcile_resends": "after 30 days",
        "reconcile_rounds": FIXED,
        "schema_migrations": "does not grow: one row for each migration",
    },
    "statuses": {
        "statuses": "30 days after the forge has it, or refused it",
        "dead_letters": "when the dead-letter queue has it",
        "limits": FIXED,
        "schema_migrations": "does not grow: one row for each migration",
    },
    "broker": {
        **dict.fromkeys(("exchanges", "queues", "bindings"), FIXED),
        "owners": "when its process has ended",
        "consumers": "when its process has ended",
        "messages": "when it is acked; a dead letter when a person replays or removes it",
        "deliveries": "when the message is acked or given back",
        "schema_migrations": "does not grow: one row for each migration",
    },
}
"""When each table's rows go."""


def tables_found() -> Iterator[tuple[str, set[str]]]:
    """The tables of each schema as its migrations leave them."""
    for name, schema in SCHEMAS.items():
        with closing(migrated(schema)) as connection:
            yield name, set(columns_of(connection))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path("broker"), migrations_of("solstice_common.broker.embedded.schema"))
        yield "broker", set(columns_of(connection))


def undeclared(found: Mapping[str, set[str]]) -> set[str]:
    """Tables without a sentence, and sentences without a table."""
    names = {f"{schema}.{each}" for schema, tables in found.items() for each in tables}
    return names ^ {f"{schema}.{each}" for schema, tables in RETENTION.items() for each in tables}


def retention_table() -> str:
    """One row per table."""
    if wrong := undeclared(dict(tables_found())):
        raise LookupError(f"tables without a retention, or the reverse: {sorted(wrong)}")
    rows = [
        (schema, f"`{each}`", sentence)
        for schema, tables in RETENTION.items()
        for each, sentence in tables.items()
    ]
    return table(("schema", "table", "a row is removed"), rows)
