"""One statement for PostgreSQL carries every change to its row and column, and nothing else.

The statements are read as PostgreSQL reads them, so far as they go; the contract suites run them on the real one.
"""

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.outbox.batches import pack
from solstice_orchestrator.store.postgresql.tables.columns import NOW
from solstice_orchestrator.store.postgresql.tables.writing import (
    OUTDATED_SECONDS,
    statement_if_unchanged,
    statement_of,
)
from solstice_orchestrator.store.records.changes import Attempt, Job, RefRun, RowChanges
from tests.builders import run_of_one_job

ARRAYS = re.compile(
    r"string_to_array\(\$(?P<lines>\d+)::text, E'\\n'\)|\$(?P<literal>\d+)::text::[a-z ]+\[\]|\$(?P<array>\d+)::(?:text|bytea)\[\]"
)
VALUE = r"\$\d+::[a-z ]+|new\.\w+|convert_to\(new\.\w+, 'UTF8'\)"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An update or insert: what each row writes, and what it must find."""

    table: str
    writes: Sequence[Row]
    finds: Sequence[Row]


def part_of(text: str, arguments: Sequence[Any]) -> Part:
    """Read one part of a statement."""
    columns: dict[str, Sequence[Any]] = {}
    found = re.search(r" FROM unnest\((.*)\) AS new \((.*?)\)", text)
    if found:
        given = [_array(each, arguments) for each in ARRAYS.finditer(found[1])]
        columns = dict(zip(found[2].split(", "), given, strict=True))
    rows = len(next(iter(columns.values()))) if columns else 1

    def values(expression: str) -> Sequence[Any]:
        if expression.startswith("$"):
            return [arguments[int(expression[1:].partition(":")[0]) - 1]] * rows
        column = columns[expression.removeprefix("convert_to(").removeprefix("new.").partition(",")[0]]
        return [each.encode() for each in column] if expression.startswith("convert_to") else column

    insert = re.match(r"INSERT INTO (\w+) \((.*?)\) SELECT ", text)
    if insert:
        expressions = re.findall(VALUE, text[insert.end() :].partition(" FROM ")[0])
        writes = dict(zip(insert[2].split(", "), map(values, expressions), strict=True))
        return Part(table=insert[1], writes=_rows(writes), finds=())
    table, assigned, where = re.fullmatch(
        r"UPDATE (\w+) SET (.*?)(?: FROM unnest.*)? WHERE (.*)", text
    ).groups()  # type: ignore[union-attr]
    writes = {name: values(each) for name, each in re.findall(rf"(\w+) = ({VALUE})", assigned)}
    finds = {name: values(each) for name, each in re.findall(rf"{table}\.(\w+) = ({VALUE})", where)}
    return Part(table=table, writes=_rows(writes), finds=_rows(finds))


def _array(found: re.Match[str], arguments: Sequence[Any]) -> Sequence[Any]:
    argument = arguments[int(found[found.lastgroup or ""]) - 1]
    match found.lastgroup:
        case "lines":
            return list(argument.split("\n"))
        case "literal":
            return [None if each == "NULL" else literal_eval(each) for each in argument[1:-1].split(",")]
        case _:
            return list(argument)


def _rows(columns: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def parts_of(statement: tuple[str, Sequence[Any]] | None) -> Sequence[Part]:
    """Read all parts of a statement that write rows."""
    assert statement is not None
    text, arguments = statement
    assert sorted({int(each) for each in re.findall(r"\$(\d+)", text)}) == [*range(1, len(arguments) + 1)]
    pieces = re.split(r"(?:^WITH |\), )part\d+ AS \(|\) (?=UPDATE \w+ SET|INSERT INTO|SELECT only_if)", text)
    return [part_of(each, arguments) for each in pieces if re.match("INSERT|UPDATE (?!workers)", each)]


RUNNING = run_of_one_job(1)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
TIMES = st.none() | st.floats(0, 2e9)


def attempt(number: int, state: JobState = JobState.FAILED, **changes: Any) -> Attempt:
    return Attempt(
        job_id=f"j-{number}",
        number=number,
        worker_id="w",
        state=state,
        reason=Reason.STEP_FAILED,
        started_at=1.0,
        finished_at=2.0,
        exit_code=3,
        step="make",
        detail="",
    )._replace(**changes)


def new_job(number: int, **changes: Any) -> Job:
    return structs.replace(RUNNING.job, job_id=f"j-{number}", position=number, **changes)


def columns_of(row: Any, names: Sequence[str]) -> Row:
    return {name: getattr(row, name) for name in names}


@given(
    st.lists(
        st.builds(
            dict,
            detail=TEXTS,
            step=st.none() | TEXTS,
            exit_code=st.none() | st.integers(-9, 255),
            started_at=TIMES,
            cancel_requested=st.booleans(),
            group_key=st.none() | st.binary(max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.binary(max_size=4), min_size=4, max_size=4),
)
def test_new_jobs_are_inserted_with_all_their_values(made: list[dict[str, Any]], specs: list[bytes]) -> None:
    jobs = [new_job(number, **changes) for number, changes in enumerate(made)]
    spec_of = {job.job_id: spec for job, spec in zip(jobs, specs, strict=False)}
    (part,) = parts_of(statement_of(RowChanges(new_jobs=jobs, specs=spec_of)))
    assert part.table == "jobs"
    assert part.writes == [{**structs.asdict(job), "spec": spec_of[job.job_id]} for job in jobs]


@given(
    st.lists(
        st.tuples(st.booleans(), TEXTS, TIMES, st.sampled_from(JobState), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    )
)
def test_jobs_are_updated_in_what_changed_and_in_nothing_else(
    reported: list[tuple[bool, str, float | None, JobState, int]],
) -> None:
    before = {f"j-{number}": new_job(number) for number in range(len(reported))}
    after = [
        structs.replace(
            job,
            cancel_requested=cancel_requested,
            detail=detail,
            lease_until=until,
            state=state,
            sequence=sequence,
        )
        for job, (cancel_requested, detail, until, state, sequence) in zip(
            before.values(), reported, strict=True
        )
    ]
    changes = RowChanges(jobs=after, jobs_before=before)
    changed = [
        name
        for name in Job.__struct_fields__
        if any(getattr(job, name) != getattr(before[job.job_id], name) for job in after)
    ]
    if not changed:
        assert statement_of(changes) is None
        return
    (part,) = parts_of(statement_of(changes))
    assert part.table == "jobs"
    assert [set(row) for row in part.writes] == [set(changed)] * len(after)
    assert part.writes == [columns_of(job, list(part.writes[0])) for job in after]
    assert part.finds == [{"job_id": job.job_id} for job in after]


def test_what_changes_at_once_is_written_in_one_statement() -> None:
    run = structs.replace(RUNNING.run, state=RunState.SUCCEEDED, sequence=3)
    job = structs.replace(RUNNING.job, state=JobState.SUCCEEDED, sequence=3)
    pushes = [RefRun(f"r-{number}", b"\xff", None, False, "c", None, 5.0, number) for number in range(2)]
    changes = RowChanges(
        runs=[run],
        jobs=[job],
        runs_before={run.run_id: RUNNING.run},
        jobs_before={job.job_id: RUNNING.job},
        attempts=[attempt(1), attempt(2, detail="of\nmany lines")],
        statuses=[RUNNING.subject],
        ref_runs=pushes,
    )
    attempts, outbox = [each._asdict() for each in changes.attempts], pack([RUNNING.subject])
    assert parts_of(statement_of(changes)) == [
        Part(
            table="runs",
            writes=[{"state": RunState.SUCCEEDED, "sequence": 3}],
            finds=[{"run_id": run.run_id}],
        ),
        Part(
            table="jobs",
            writes=[{"state": JobState.SUCCEEDED, "sequence": 3}],
            finds=[{"job_id": job.job_id}],
        ),
        Part(table="attempts", writes=attempts, finds=()),
        Part(table="outbox", writes=[each._asdict() for each in outbox], finds=()),
        Part(table="ref_runs", writes=[each._asdict() for each in pushes], finds=()),
    ]


def test_rows_that_were_not_read_are_changed_only_as_they_were() -> None:
    before = [run_of_one_job(number) for number in range(3)]
    jobs = [
        structs.replace(each.job, state=JobState.SUCCEEDED, sequence=3 + place)
        for place, each in enumerate(before)
    ]
    runs = [structs.replace(each.run, state=RunState.SUCCEEDED, sequence=3) for each in before[:2]]
    changes = RowChanges(
        runs=runs,
        jobs=jobs,
        runs_before={each.run.run_id: each.run for each in before},
        jobs_before={
            each.job.job_id: structs.replace(each.job, attempt=1 + n) for n, each in enumerate(before)
        },
        statuses=[RUNNING.subject],
    )
    text, arguments = statement_if_unchanged(changes, 12.5)
    of_runs, of_jobs, outbox = parts_of((text, arguments))
    assert of_runs.finds == [{"run_id": run.run_id, "sequence": 2} for run in runs]
    assert of_jobs.finds == [
        {"job_id": job.job_id, "attempt": 1 + n, "sequence": 2, "cancel_requested": False}
        for n, job in enumerate(jobs)
    ]
    assert outbox.table == "outbox"
    clock, *counts = re.findall(
        r"\$(\d+)::(?:double precision|bigint)(?=\)? [<A]|\))", text.rpartition("SELECT only_if(")[2]
    )
    assert [arguments[int(each) - 1] for each in (clock, *counts)] == [12.5, 2, 3]
    assert f"abs({NOW} - ${clock}::double precision) < {OUTDATED_SECONDS}" in text
    assert re.findall(r"FROM part(\d)\) = \$(\d+)", text) == [("0", counts[0]), ("1", counts[1])]
    assert text.count("RETURNING 1") == 2
    assert text.endswith(f"{NOW} AS now")


def test_without_a_time_the_clock_is_not_asked_whether_it_agrees() -> None:
    job = structs.replace(RUNNING.job, sequence=3)
    changes = RowChanges(jobs=[job], jobs_before={job.job_id: RUNNING.job})
    text, arguments = statement_if_unchanged(changes, None)
    assert "abs(" not in text
    assert arguments[-1] == 1
    assert text.endswith(f"only_if((SELECT count(*) FROM part0) = ${len(arguments)}::bigint), {NOW} AS now")  # noqa: S608  our own text


def test_workers_whose_jobs_ended_well_are_healthy_again() -> None:
    changes = RowChanges(attempts=[attempt(1, JobState.SUCCEEDED, reason=Reason.COMPLETED)])
    statement = statement_of(changes)
    assert statement is not None
    text, arguments = statement
    found = re.search(
        r"UPDATE workers SET failures = 0, causes = '\[\]' WHERE failures > 0 AND worker_id = ANY\(\$(\d+)",
        text,
    )
    assert found
    assert arguments[int(found[1]) - 1] == ["w"]


@pytest.mark.parametrize(
    "changes",
    [
        RowChanges(),
        RowChanges(jobs=[RUNNING.job]),
        RowChanges(runs=[RUNNING.run], runs_before={"run-1": RUNNING.run}),
    ],
    ids=["nothing", "a job as it was", "a run as it was"],
)
def test_what_did_not_change_is_not_written(changes: RowChanges) -> None:
    assert statement_of(changes) is None


def test_identical_rows_are_refused() -> None:
    """They would become one."""
    with pytest.raises(ValueError, match="rows of attempts that are all the same"):
        statement_of(RowChanges(attempts=[attempt(1)] * 2))


def test_the_same_value_of_many_rows_is_sent_once() -> None:
    jobs = [new_job(number) for number in range(5)]
    statement = statement_of(RowChanges(new_jobs=jobs, specs={job.job_id: b"{}" for job in jobs}))
    assert statement is not None
    assert [each for each in statement[1] if each == RUNNING.job.repository] == [RUNNING.job.repository]
    assert "j-0\nj-1\nj-2\nj-3\nj-4" in statement[1]
