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
from solstice_orchestrator.store.postgresql.columns import NOW, type_of
from solstice_orchestrator.store.standings import healthy_ends

OUTDATED_SECONDS: Final = 5.0
"""A decision that is older when it is written is not: a transaction that stood still for so long is lost as well."""

Rows = Sequence[Sequence[Any]]

_RUN_NAMES: Final = ("run_id", *RUN_CHANGES)
_JOB_NAMES: Final = ("job_id", *JOB_CHANGES)
_AS_BEFORE_OF_RUN: Final = ("sequence",)
_AS_BEFORE_OF_JOB: Final = ("attempt", "sequence", "cancel_asked")
"""What changes with every change on which an end depends. Their states do not change without `sequence`, and asking for
those would have PostgreSQL look through all that runs, for which it has an index."""
_OF_RUN: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*_RUN_NAMES)
_OF_JOB: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*_JOB_NAMES)


def statement_of(changes: Changes) -> tuple[str, Sequence[Any]] | None:
    """The statement and its arguments; None when there is nothing to write.

    No part of it sees what another one does, and none needs to: each row is changed by one of them, once.
    """
    arguments: list[Any] = []
    texts = [*_updates(changes, arguments, (), ()), *_rest(changes, arguments)]
    if not texts:
        return None
    *before, last = texts
    return _with(before, last), arguments


def statement_if_unchanged(changes: Changes, now: float | None) -> tuple[str, Sequence[Any]]:
    """The same for rows that nobody has locked or looked at: it undoes itself (a serialization failure) unless they are as before.

    Unless `now` is None, the database's clock has to show that as well, give or take `OUTDATED_SECONDS`; its row says
    what it shows.
    Rows are locked as everybody locks them, runs before jobs, each in the order in which they stand in `changes`.
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
    # What is counted is carried out when it is asked for, the rest afterwards.
    return _with([*updates, *rest], f"SELECT only_if({' AND '.join(expected)}), {NOW} AS now"), arguments


def _with(parts: Sequence[str], last: str) -> str:
    if not parts:
        return last
    return f"WITH {', '.join(f'part{number} AS ({text})' for number, text in enumerate(parts))} {last}"


def _updates(
    changes: Changes, arguments: list[Any], of_runs: Sequence[str], of_jobs: Sequence[str]
) -> list[str]:
    """`of_runs`, `of_jobs`: the columns that have to be as before; with any, the rows that were changed are returned."""
    runs_before = [changes.runs_before.get(run.run_id, run) for run in changes.runs]
    jobs_before = [changes.jobs_before.get(job.job_id, job) for job in changes.jobs]
    parts = [
        _update(
            "runs",
            _RUN_NAMES,
            [*map(_OF_RUN, changes.runs)],
            [*map(_OF_RUN, runs_before)],
            arguments,
            of_runs,
        ),
        _update(
            "jobs",
            _JOB_NAMES,
            [*map(_OF_JOB, changes.jobs)],
            [*map(_OF_JOB, jobs_before)],
            arguments,
            of_jobs,
        ),
    ]
    return [part for part in parts if part]


def _rest(changes: Changes, arguments: list[Any]) -> list[str]:
    parts = [
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
    return [part for part in parts if part]


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


def _update(  # noqa: PLR0917  two of everything
    table: str,
    names: Sequence[str],
    rows: Rows,
    before: Rows,
    arguments: list[Any],
    as_before: Sequence[str],
) -> str:
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
    known = [
        _column(name, old[number], arguments, varies=False, prefix="old_")
        for number, name in enumerate(names)
        if name in as_before
    ]
    assignments = ", ".join(f"{column.name} = {column.value}" for column in new)
    same = "".join(f" AND {table}.{column.name.removeprefix('old_')} = {column.value}" for column in known)
    returning = " RETURNING 1" if known else ""
    return f"UPDATE {table} SET {assignments}{_from((key, *new, *known))} WHERE {table}.{key.name} = {key.value}{same}{returning}"  # noqa: S608  our own names


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


def _column(
    name: str, values: tuple[Any, ...], arguments: list[Any], *, varies: bool, prefix: str = ""
) -> _Column:
    kind, name = type_of(name), prefix + name
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
