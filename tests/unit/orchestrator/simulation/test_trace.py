"""Traces are read whole or refused naming the line; generated traffic is as requested."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.simulation.trace import (
    InvalidTrace,
    TraceGroup,
    TraceJob,
    encode,
    of_label,
    read_runs,
)
from tests.traces import trace_job

LINE = b'{"at":1,"repository":"acme/app","label":"linux","seconds":2}'


def read(*lines: bytes) -> list[Sequence[TraceJob]]:
    return list(read_runs(lines, "jobs.jsonl"))


def test_a_line_is_a_job() -> None:
    assert read(LINE + b"\n") == [[trace_job(1.0, 2.0)]]


def test_what_is_written_is_read_again() -> None:
    jobs = [
        trace_job(0.5, 2.25, priority=Priority.HIGH, run="r", name="build"),
        trace_job(
            0.5,
            8.0,
            run="r",
            needs=("build",),
            concurrency=TraceGroup(group="deploy", mode=GroupMode.CANCEL),
        ),
        trace_job(0.5, 1.0, run_concurrency=TraceGroup(group="pages")),
    ]
    assert read(*map(encode, jobs)) == [jobs[:2], jobs[2:]]


def test_jobs_of_one_run_are_those_that_stand_together() -> None:
    lines = [encode(trace_job(0.0, run=run)) for run in ("a", "a", "b", "", "", "a")]
    assert [len(run) for run in read(*lines)] == [2, 1, 1, 1, 1]


def test_empty_lines_are_passed_over_and_counted() -> None:
    with pytest.raises(InvalidTrace, match=r"jobs\.jsonl, line 4: "):
        read(LINE, b"\n", LINE, b"nothing\n")


@pytest.mark.parametrize(
    ("lines", "line", "problem"),
    [
        pytest.param([b"hello"], 1, "'hello' is not JSON", id="no JSON"),
        pytest.param([LINE, b"\xff\xfe"], 2, "is not JSON", id="no text"),
        pytest.param([LINE, b'{"at":1'], 2, "write for example", id="cut off"),
        pytest.param([b"[1]"], 1, "Expected `object`", id="no object"),
        pytest.param(
            [LINE.replace(b'"seconds":2', b'"seconds":-2')], 1, r">= 0.0 - at `$.seconds`", id="negative"
        ),
        pytest.param([LINE.replace(b'"at":1,', b"")], 1, "missing required field `at`", id="no time"),
        pytest.param([LINE.replace(b"label", b"lable")], 1, "unknown field `lable`", id="misspelt"),
        pytest.param([LINE.replace(b"linux", b"")], 1, "`$.label`", id="no label"),
        pytest.param([LINE[:-1] + b',"priority":"urgent"}'], 1, "'urgent'", id="no such class"),
        pytest.param([LINE, LINE.replace(b'"at":1', b'"at":0.5')], 2, "sort the lines", id="back in time"),
        pytest.param(
            [encode(trace_job(0.0, run="r")), encode(trace_job(1.0, run="r"))],
            2,
            "the run 'r' begins in line 1 with others",
            id="two times in a run",
        ),
        pytest.param(
            [encode(trace_job(run="r", name="a")), encode(trace_job(run="r", name="a"))],
            2,
            "has a job 'a' already, in line 1",
            id="one name twice",
        ),
        pytest.param([encode(trace_job(needs=("a",)))], 1, "it needs 'a'", id="a need that is not there"),
        pytest.param(
            [
                encode(trace_job(run="r", name="a")),
                encode(trace_job(run="r", name="b", needs=("c",))),
                encode(trace_job(run="r", name="c", needs=("b",))),
            ],
            2,
            "it needs itself",
            id="needs in a circle",
        ),
    ],
)
def test_mistakes_are_reported_with_their_lines(lines: list[bytes], line: int, problem: str) -> None:
    with pytest.raises(InvalidTrace) as refused:
        read(*lines)
    assert refused.value.line == line
    assert problem in refused.value.problem


def test_the_example_in_a_refusal_is_a_line_of_a_trace() -> None:
    with pytest.raises(InvalidTrace) as refused:
        read(b"hello")
    (run,) = read(refused.value.problem.partition("write for example ")[2].encode())
    assert len(run) == 1


@given(st.lists(st.one_of(st.binary(max_size=80), st.just(LINE), st.just(LINE[:-1] + b',"needs":["a"]}'))))
def test_nothing_but_an_invalid_trace_is_raised(lines: list[bytes]) -> None:
    try:
        runs = read(*lines)
    except InvalidTrace as refused:
        assert 1 <= refused.line <= len(lines)  # noqa: PT017  either is right
    else:
        assert sum(map(len, runs)) == sum(not line.isspace() for line in lines)


def test_a_label_is_taken_out_of_the_runs() -> None:
    runs = [[trace_job(0.0), trace_job(0.0, label="illumos")], [trace_job(1.0, label="illumos")]]
    assert list(of_label(runs, "linux")) == [[trace_job(0.0)]]
