"""Traces are read whole or refused with the line that is wrong; invented traffic is what was asked for."""

import functools
import random
from collections import Counter
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
from solstice_orchestrator.simulation.traffic import HOUR, Traffic, busy, generate
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
def test_what_is_wrong_is_said_with_its_line(lines: list[bytes], line: int, problem: str) -> None:
    with pytest.raises(InvalidTrace) as refused:
        read(*lines)
    assert refused.value.line == line
    assert problem in refused.value.problem


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


WEEK = Traffic(
    jobs=20_000,
    repositories=500,
    over_seconds=7 * 24 * HOUR,
    labels={"linux": 3, "illumos": 1},
    chained=0.5,
)


@functools.cache
def week() -> Sequence[TraceJob]:
    return list(generate(WEEK, random.Random(1)))


class TestTraffic:
    def test_there_are_as_many_as_were_asked_for_in_order_and_in_time(self) -> None:
        assert len(week()) == WEEK.jobs
        assert [each.at for each in week()] == sorted(each.at for each in week())
        assert week()[-1].at <= WEEK.over_seconds

    def test_it_is_a_trace(self) -> None:
        assert [each for run in read(*map(encode, week())) for each in run] == week()

    def test_the_same_seed_gives_the_same_and_another_another(self) -> None:
        assert list(generate(WEEK, random.Random(1))) == week()
        assert list(generate(WEEK, random.Random(2))) != week()

    def test_few_repositories_send_most(self) -> None:
        """Zipf: the first sends about ten times what the tenth does, here to the power of 1.1."""
        counts = Counter(each.repository for each in week())
        assert counts["owner/repository-1"] / counts["owner/repository-10"] == pytest.approx(10**1.1, rel=0.3)

    def test_labels_get_their_shares(self) -> None:
        assert Counter(each.label for each in week())["linux"] / len(week()) == pytest.approx(0.75, abs=0.02)

    def test_half_of_the_jobs_take_less_than_the_median(self) -> None:
        assert sum(each.seconds < 60.0 for each in week()) / len(week()) == pytest.approx(0.5, abs=0.02)

    def test_nights_and_weekends_are_quiet(self) -> None:
        came = Counter(int(each.at // HOUR) for each in week())
        assert came[14] > 3 * came[2]
        assert sum(came[hour] for hour in range(24)) > 3 * sum(came[5 * 24 + hour] for hour in range(24))
        assert busy(14) == max(map(busy, range(7 * 24)))

    @pytest.mark.parametrize("over_seconds", [0.5, 60.0, HOUR, 36 * HOUR])
    def test_any_time_is_filled(self, over_seconds: float) -> None:
        traffic = Traffic(jobs=2000, repositories=3, over_seconds=over_seconds, labels={"linux": 1})
        times = [each.at for each in generate(traffic, random.Random(1))]
        assert 0.8 * over_seconds < max(times) <= over_seconds
