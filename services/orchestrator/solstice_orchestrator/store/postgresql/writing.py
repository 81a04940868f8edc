"""The changes of a decision become one statement, however many rows of however many tables they touch. Pure.

Only what changed is written, and a value that is the same in every row is sent once. Values that differ are sent as one
text per column: the client library would look at every element of an array for ten times as long as it takes to send it.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import structs

from solstice_orchestrator.store.changes import (
    JOB_CHANGES,
    RUN_CHANGES,
    Attempt,
    Changes,
    Job,
    Kin,
)
from solstice_orchestrator.store.parcels import Parcel, pack
from solstice_orchestrator.store.postgresql.columns import type_of
from solstice_orchestrator.store.standings import healthy_ends

Rows = Sequence[Sequence[Any]]

_RUN_NAMES: Final = ("run_id", *RUN_CHANGES)
_JOB_NAMES: Final = ("job_id", *JOB_CHANGES)
_OF_RUN: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*_RUN_NAMES)
_OF_JOB: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*_JOB_NAMES)


def statement_of(changes: Changes) -> tuple[str, Sequence[Any]] | None:
    """The statement and its arguments; None when there is nothing to write.

    No part of it sees what another one does, and none needs to: each row is changed by one of them, once.
    """
    arguments: list[Any] = []
    runs_before = [changes.runs_before.get(run.run_id, run) for run in changes.runs]
    jobs_before = [changes.jobs_before.get(job.job_id, job) for job in changes.jobs]
    parts = [
        _update("runs", _RUN_NAMES, [*map(_OF_RUN, changes.runs)], [*map(_OF_RUN, runs_before)], arguments),
        _update("jobs", _JOB_NAMES, [*map(_OF_JOB, changes.jobs)], [*map(_OF_JOB, jobs_before)], arguments),
        _insert(
            "jobs",
            (*Job.__struct_fields__, "spec"),
            [(*structs.astuple(job), changes.specs[job.job_id]) for job in changes.new_jobs],
            arguments,
        ),
        _insert("attempts", Attempt._fields, changes.attempts, arguments),
        _insert("outbox", Parcel._fields, pack(changes.messages), arguments),
        _insert("lineages", Kin._fields, changes.kin, arguments),
        _clear_failures(healthy_ends(changes.attempts), arguments),
    ]
    texts = [part for part in parts if part]
    if not texts:
        return None
    *before, last = texts
    if not before:
        return last, arguments
    named = ", ".join(f"part{number} AS ({text})" for number, text in enumerate(before))
    return f"WITH {named} {last}", arguments


def _clear_failures(worker_ids: Sequence[str], arguments: list[Any]) -> str:
    """Workers that did well; those without failures are left alone."""
    if not worker_ids:
        return ""
    arguments.append(list(worker_ids))
    ids = f"${len(arguments)}::text[]"
    return f"UPDATE workers SET failures = 0 WHERE failures > 0 AND worker_id = ANY({ids})"  # noqa: S608  a number of our own


class _Column(NamedTuple):
    """One column of the rows to write."""

    name: str
    rows: str
    """What to unnest; empty for a value that is the same in every row."""
    value: str
    """What stands for it in the statement."""


def _update(table: str, names: Sequence[str], rows: Rows, before: Rows, arguments: list[Any]) -> str:
    """`names` begins with the key; columns that are as they were are left out."""
    if not rows:
        return ""
    columns = list(zip(*rows, strict=True))
    old = list(zip(*before, strict=True))
    changed = [number for number in range(1, len(names)) if columns[number] != old[number]]
    if not changed:
        return ""
    key, *new = [
        _column(names[number], columns[number], arguments, varies=number == 0 and len(rows) > 1)
        for number in (0, *changed)
    ]
    assignments = ", ".join(f"{column.name} = {column.value}" for column in new)
    return f"UPDATE {table} SET {assignments}{_from((key, *new))} WHERE {table}.{key.name} = {key.value}"  # noqa: S608  our own names


def _insert(table: str, names: Sequence[str], rows: Rows, arguments: list[Any]) -> str:
    if not rows:
        return ""
    columns = [
        _column(name, values, arguments, varies=False)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    if len(rows) > 1 and not any(column.rows for column in columns):
        raise ValueError(f"rows of {table} that are all the same")
    values = ", ".join(column.value for column in columns)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values}{_from(columns)}"


def _from(columns: Sequence[_Column]) -> str:
    varying = [column for column in columns if column.rows]
    if not varying:
        return ""
    arrays, names = (", ".join(column.rows for column in varying), ", ".join(each.name for each in varying))
    return f" FROM unnest({arrays}) AS new ({names})"


def _column(name: str, values: tuple[Any, ...], arguments: list[Any], *, varies: bool) -> _Column:
    kind = type_of(name)
    if not varies and values.count(values[0]) == len(values):
        arguments.append(values[0])
        return _Column(name, "", f"${len(arguments)}::{kind}")
    place, value = f"${len(arguments) + 1}", f"new.{name}"
    if kind in {"text", "bytea"}:
        lines = _lines(values)
        if lines is None:
            arguments.append(list(values))
            return _Column(name, f"{place}::{kind}[]", value)
        arguments.append(lines)
        value = value if kind == "text" else f"convert_to({value}, 'UTF8')"
        return _Column(name, f"string_to_array({place}::text, E'\\n')", value)
    arguments.append(f"{{{','.join(['NULL' if each is None else repr(each) for each in values])}}}")
    return _Column(name, f"{place}::text::{kind}[]", value)


def _lines(values: tuple[Any, ...]) -> str | None:
    """Texts, a line each; None when they have lines of their own, or are no texts at all."""
    try:
        text: str = b"\n".join(values).decode() if isinstance(values[0], bytes) else "\n".join(values)
    except (TypeError, UnicodeDecodeError):
        return None
    return text if text.count("\n") == len(values) - 1 and "\0" not in text else None
