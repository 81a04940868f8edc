"""Turns the changes of a decision into one statement, for any number of rows. Pure.

Only what changed is written, and a value that is the same in every row is sent once. Values that differ are sent as one
text per column: the client library would check every element of an array, which takes ten times as long as sending it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from solstice_orchestrator.store.decisions.worker_records import healthy_ends
from solstice_orchestrator.store.outbox.batches import OutboxBatch, pack
from solstice_orchestrator.store.postgresql.tables.columns import NOW, type_of
from solstice_orchestrator.store.records.attempts import attempts_to_insert
from solstice_orchestrator.store.records.changes import (
    JOB_CHANGES,
    RUN_CHANGES,
    Attempt,
    ChunkRow,
    Job,
    OutputsRow,
    RefRun,
    RowChanges,
    Run,
)

OUTDATED_SECONDS: Final = 5.0
"""A decision older than this is not written: a transaction that paused for so long is lost as well."""

_LOG: Final = "job_id, attempt, sequence, at, data, kind"
_OF_JOB: Final = f"log_chunks ({_LOG}) SELECT {_LOG}"
_OF_SERVICE: Final = f"service_log_chunks ({_LOG}, service) SELECT {_LOG}, service"

Rows = Sequence[Sequence[Any]]

_AS_BEFORE_OF_RUN: Final = ("sequence",)
_AS_BEFORE_OF_JOB: Final = ("attempt", "sequence", "cancel_requested")
"""Columns that change with every change on which an end depends. The states do not change without `sequence`, and a
condition on a state would make PostgreSQL search all running jobs, for which it has an index.
"""
_PLACES_OF_RUN: Final = {name: Run.__struct_fields__.index(name) for name in ("run_id", *RUN_CHANGES)}
_PLACES_OF_JOB: Final = {name: Job.__struct_fields__.index(name) for name in ("job_id", *JOB_CHANGES)}
"""Where the columns are in a row: the key first, then those that decisions change."""


def statement_of(changes: RowChanges) -> tuple[str, Sequence[Any]] | None:
    """Return the statement and its arguments; None when there is nothing to write.

    Its parts do not see each other's changes, and need not: each row is changed by one part, once.
    """
    arguments: list[Any] = []
    texts = [*_updates(changes, arguments, (), ()), *_rest(changes, arguments)]
    if not texts:
        return None
    *before, last = texts
    return _with(tuple(before), last), arguments


def statement_if_unchanged(changes: RowChanges, now: float | None) -> tuple[str, Sequence[Any]]:
    """Return the statement that writes only if the rows are unchanged.

    The rows were not locked or read: unless they are as before, the statement undoes itself (a serialization failure).
    Unless `now` is None, the database's clock must also show that time, within `OUTDATED_SECONDS`; its row returns the
    clock. Rows are locked in the common order: runs before jobs, each in the order of `changes`.
    """
    arguments: list[Any] = []
    updates = _updates(changes, arguments, _AS_BEFORE_OF_RUN, _AS_BEFORE_OF_JOB)
    rest = _rest(changes, arguments)
    expected = []
    if now is not None:
        arguments.append(now)
        expected.append(f"abs({NOW} - ${len(arguments)}::double precision) < {OUTDATED_SECONDS}")
    changed = [len(rows) for rows in (changes.runs, changes.jobs) if rows]
    for number, (_, count) in enumerate(zip(updates, changed, strict=True)):
        arguments.append(count)
        expected.append(f"(SELECT count(*) FROM part{number}) = ${len(arguments)}::bigint")  # noqa: S608  numbers of our own
    # The parts that are counted run when the count needs them, the rest afterwards.
    return _with((*updates, *rest), f"SELECT only_if({' AND '.join(expected)}), {NOW} AS now"), arguments


def _updates(
    changes: RowChanges, arguments: list[Any], of_runs: Sequence[str], of_jobs: Sequence[str]
) -> list[str]:
    """Return the updates of runs and jobs.

    `of_runs`, `of_jobs`: the columns that must be as before; with any, the changed rows are returned.
    """
    runs_before = [changes.runs_before.get(run.run_id, run) for run in changes.runs]
    jobs_before = [changes.jobs_before.get(job.job_id, job) for job in changes.jobs]
    parts = [
        _update("runs", _PLACES_OF_RUN, changes.runs, runs_before, arguments, of_runs),
        _update("jobs", _PLACES_OF_JOB, changes.jobs, jobs_before, arguments, of_jobs),
    ]
    return [part for part in parts if part]


def _rest(changes: RowChanges, arguments: list[Any]) -> list[str]:
    parts = [
        _insert(
            "jobs",
            (*Job.__struct_fields__, "spec"),
            [(*structs.astuple(job), changes.specs[job.job_id]) for job in changes.new_jobs],
            arguments,
        ),
        _insert("attempts", Attempt._fields, attempts_to_insert(changes), arguments),
        _insert("outbox", OutboxBatch._fields, pack(changes.statuses, changes.dead_letters), arguments),
        _insert("outputs", OutputsRow._fields, changes.outputs, arguments),
        _insert("ref_runs", RefRun._fields, changes.ref_runs, arguments),
        _insert_log([row for row in changes.log_rows if not row.service], _OF_JOB, arguments),
        _insert_log([row for row in changes.log_rows if row.service], _OF_SERVICE, arguments),
        _clear_failures(healthy_ends(changes.attempts), arguments),
    ]
    return [part for part in parts if part]


def _insert_log(rows: Sequence[ChunkRow], into: str, arguments: list[Any]) -> str:
    """Return the insertion of chunks of logs; stored ones stay as they are.

    Nearly every end brings some, and always as arrays: one more shape, not one for each way to send them.
    """
    if not rows:
        return ""
    arrays = []
    for name, values in zip(ChunkRow._fields, zip(*rows, strict=True), strict=True):
        arguments.append(list(values))
        arrays.append(f"${len(arguments)}::{type_of(name)}[]")
    names = ", ".join(ChunkRow._fields)
    return f"INSERT INTO {into} FROM unnest({', '.join(arrays)}) AS new ({names}) ON CONFLICT DO NOTHING"


def _clear_failures(worker_ids: Sequence[str], arguments: list[Any]) -> str:
    """Return the update that clears failures of these workers; others stay untouched."""
    if not worker_ids:
        return ""
    arguments.append(list(worker_ids))
    ids = f"${len(arguments)}::text[]"
    return f"UPDATE workers SET failures = 0, causes = '[]' WHERE failures > 0 AND worker_id = ANY({ids})"  # noqa: S608  a number of our own


class _Form(StrEnum):
    """How the values of one column are sent."""

    SAME = "same"
    """Once, as one value for every row."""
    LINES = "lines"
    """As the lines of one text."""
    TEXTS = "texts"
    """As an array, since some values contain line breaks."""
    LITERAL = "literal"
    """As the text of an array."""


_Sent = tuple[str, _Form]
"""The name of a column, and how its values are sent."""


def _update(  # noqa: PLR0917  two of everything
    table: str,
    indexes: Mapping[str, int],
    rows: Sequence[Struct],
    before: Sequence[Struct],
    arguments: list[Any],
    as_before: Sequence[str],
) -> str:
    """Return the update of a table's changed columns.

    `indexes`: the index of each column in a row, the key first.
    """
    if not rows:
        return ""
    # Whole rows: picking fields one by one takes longer than everything done with them.
    columns = list(zip(*map(structs.astuple, rows), strict=True))
    old = list(zip(*map(structs.astuple, before), strict=True))
    key, *others = indexes
    changed = [name for name in others if columns[indexes[name]] != old[indexes[name]]]
    if not changed:
        return ""
    first = len(arguments) + 1
    sent = [_send(key, columns[indexes[key]], arguments, varies=len(rows) > 1)]
    sent += [_send(name, columns[indexes[name]], arguments) for name in changed]
    known = [_send(name, old[indexes[name]], arguments) for name in as_before]
    return _update_text(table, tuple(sent), tuple(known), first)


def _insert(table: str, names: Sequence[str], rows: Rows, arguments: list[Any]) -> str:
    if not rows:
        return ""
    first = len(arguments) + 1
    sent = [
        _send(name, values, arguments) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    if len(rows) > 1 and all(form is _Form.SAME for _, form in sent):
        raise ValueError(f"rows of {table} that are all the same")
    return _insert_text(table, tuple(sent), first)


def _send(name: str, values: tuple[Any, ...], arguments: list[Any], *, varies: bool = False) -> _Sent:
    """Add the values of a column to the arguments."""
    if not varies and values.count(values[0]) == len(values):
        arguments.append(values[0])
        return name, _Form.SAME
    if type_of(name) not in {"text", "bytea"}:
        arguments.append(f"{{{','.join(['NULL' if each is None else repr(each) for each in values])}}}")
        return name, _Form.LITERAL
    lines = _lines(values)
    if lines is None:
        arguments.append(list(values))
        return name, _Form.TEXTS
    arguments.append(lines)
    return name, _Form.LINES


def _lines(values: tuple[Any, ...]) -> str | None:
    """Return texts as lines; None when one contains a line break, or is no text."""
    try:
        text: str = b"\n".join(values).decode() if isinstance(values[0], bytes) else "\n".join(values)
    except (TypeError, UnicodeDecodeError):
        return None
    return text if text.count("\n") == len(values) - 1 and "\0" not in text else None


# -- texts: one for each shape of changes, and few shapes occur again and again --------------------------------------


@lru_cache(maxsize=512)
def _with(parts: tuple[str, ...], last: str) -> str:
    if not parts:
        return last
    return f"WITH {', '.join(f'part{number} AS ({text})' for number, text in enumerate(parts))} {last}"


@lru_cache(maxsize=512)
def _update_text(table: str, sent: tuple[_Sent, ...], known: tuple[_Sent, ...], first: int) -> str:
    """Return the text of an update.

    `sent` begins with the key, `known` has what must be as before; their arguments are numbered from `first` on.
    """
    key, *new = _columns(sent, first)
    old = _columns(known, first + len(sent), prefix="old_")
    assignments = ", ".join(f"{column.name} = {column.value}" for column in new)
    same = "".join(f" AND {table}.{column.name.removeprefix('old_')} = {column.value}" for column in old)
    returning = " RETURNING 1" if old else ""
    return f"UPDATE {table} SET {assignments}{_from((key, *new, *old))} WHERE {table}.{key.name} = {key.value}{same}{returning}"  # noqa: S608  our own names


@lru_cache(maxsize=512)
def _insert_text(table: str, sent: tuple[_Sent, ...], first: int) -> str:
    columns = _columns(sent, first)
    names = ", ".join(column.name for column in columns)
    values = ", ".join(column.value for column in columns)
    return f"INSERT INTO {table} ({names}) SELECT {values}{_from(columns)}"


class _Column(NamedTuple):
    """One column of the rows to write."""

    name: str
    rows: str
    """What to unnest; empty for a value that is the same in every row."""
    value: str
    """The expression for it in the statement."""


def _columns(sent: Sequence[_Sent], first: int, prefix: str = "") -> Sequence[_Column]:
    return [_column(name, form, f"${number}", prefix) for number, (name, form) in enumerate(sent, first)]


def _column(name: str, form: _Form, placeholder: str, prefix: str) -> _Column:
    kind, name = type_of(name), prefix + name
    value = f"new.{name}"
    match form:
        case _Form.SAME:
            return _Column(name, "", f"{placeholder}::{kind}")
        case _Form.LINES:
            text = value if kind == "text" else f"convert_to({value}, 'UTF8')"
            return _Column(name, f"string_to_array({placeholder}::text, E'\\n')", text)
        case _Form.TEXTS:
            return _Column(name, f"{placeholder}::{kind}[]", value)
        case _Form.LITERAL:
            return _Column(name, f"{placeholder}::text::{kind}[]", value)


def _from(columns: Sequence[_Column]) -> str:
    varying = [column for column in columns if column.rows]
    if not varying:
        return ""
    arrays, names = (", ".join(column.rows for column in varying), ", ".join(each.name for each in varying))
    return f" FROM unnest({arrays}) AS new ({names})"
