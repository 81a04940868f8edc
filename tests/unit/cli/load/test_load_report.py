"""A load is judged by what the API shows."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from solstice_cli.load.load_output import report_lines
from solstice_cli.load.load_plan import JobKind, LoadRequest
from solstice_cli.load.load_report import Document, LoadReport, Seen, Sent
from solstice_cli.load.load_report import judged as judged_of
from solstice_common.values.times import format_timestamp, parse_timestamp

BEGAN = parse_timestamp("2026-01-31T12:00:00Z").timestamp()


def at(seconds: float) -> str:
    return format_timestamp(parse_timestamp("2026-01-31T12:00:00Z") + timedelta(seconds=seconds))


def sent(number: int, kind: JobKind = JobKind.NOOP, refusal: str | None = None) -> Sent:
    request = LoadRequest(number=number, kind=kind, repository=1, priority=None, due_seconds=0.0)
    return Sent(request=request, due_at=BEGAN, answered_at=BEGAN + 1, refusal=refusal)


def run(number: int, state: str = "succeeded") -> Document:
    return {
        "run_id": f"run-{number}",
        "state": state,
        "detail": "",
        "created_at": at(2),
        "finished_at": None if state == "running" else at(10),
    }


def job(number: int) -> Document:
    return {"job_id": f"job-{number}", "run_id": f"run-{number}", "created_at": at(4), "started_at": at(7)}


def attempt(state: str, reason: str, started: float = 7) -> Document:
    return {"state": state, "reason": reason, "started_at": at(started)}


def seen(number: int, state: str = "succeeded", attempts: Sequence[Document] = ()) -> Seen:
    tries = {f"job-{number}": attempts} if attempts else {}
    return Seen(runs=[run(number, state)], jobs=[job(number)], attempts=tries)


def judged(sent: Sequence[Sent], seen: Mapping[int, Seen]) -> LoadReport:
    """The report where every request was sent."""
    return judged_of(sent, seen, requests=len(sent))


def test_what_was_never_sent_is_counted_and_not_good() -> None:
    report = judged_of([sent(1)], {1: seen(1)}, requests=3)
    assert (report.requests, report.unsent, report.lost, report.good) == (3, 2, 0, False)


def test_all_that_ended_once_as_it_has_to_is_good() -> None:
    report = judged([sent(1), sent(2, JobKind.FAILING)], {1: seen(1), 2: seen(2, "failed")})
    assert report.good
    assert (report.accepted, report.ended, report.lost, report.duplicated, report.wrong) == (2, 2, 0, 0, 0)
    assert dict(report.states) == {"succeeded": 1, "failed": 1}
    assert report.run_seconds == pytest.approx(10)


def test_each_stop_is_timed_from_the_one_before() -> None:
    report = judged([sent(1)], {1: seen(1)})
    expected = {"accepted": 1, "stored": 1, "planned": 2, "started": 3, "ended": 3, "whole": 10}
    assert {stop.stop: stop.p50 for stop in report.stops} == pytest.approx(expected)


def test_a_stop_is_never_shorter_than_nothing_when_clocks_differ() -> None:
    early = Seen(runs=[{**run(1), "created_at": at(-5)}], jobs=[job(1)])
    report = judged([sent(1)], {1: early})
    assert min(stop.p50 for stop in report.stops) == 0.0


def test_what_was_accepted_and_has_no_run_is_lost() -> None:
    report = judged([sent(1), sent(2)], {1: seen(1)})
    assert (report.lost, report.good) == (1, False)
    assert "request 2 (noop) has no run" in report.examples


def test_what_was_not_accepted_is_not_lost_and_not_good() -> None:
    report = judged([sent(1, refusal="answered 503")], {})
    assert (report.lost, report.accepted, report.good) == (0, 0, False)
    assert dict(report.refusals) == {"answered 503": 1}


def test_two_runs_of_one_request_are_a_duplicate() -> None:
    twice = Seen(runs=[run(1), run(7)], jobs=[job(1)])
    report = judged([sent(1)], {1: twice})
    assert (report.duplicated, report.good) == (1, False)
    assert any("became 2 runs" in example for example in report.examples)


def test_a_job_that_succeeded_twice_is_a_duplicate() -> None:
    tries = [attempt("succeeded", "completed"), attempt("succeeded", "completed")]
    assert judged([sent(1)], {1: seen(1, attempts=tries)}).duplicated == 1


@pytest.mark.parametrize(
    ("first", "counted"),
    [
        (attempt("failed", "step_failed"), (1, 0, 0)),
        (attempt("errored", "lease_expired"), (0, 1, 0)),
        (attempt("errored", "checkout_failed"), (0, 0, 1)),
    ],
)
def test_another_try_is_counted_by_its_cause(first: Document, counted: tuple[int, int, int]) -> None:
    tries = [first, attempt("succeeded", "completed", started=9)]
    report = judged([sent(1, JobKind.FLAKY)], {1: seen(1, attempts=tries)})
    assert (report.retried, report.rescued, report.repeated) == counted
    assert report.good


def test_a_wrong_end_is_named_with_its_run() -> None:
    report = judged([sent(1)], {1: seen(1, "errored")})
    assert (report.wrong, report.good) == (1, False)
    assert "run run-1 (noop) ended as errored: -" in report.examples


def test_what_still_runs_is_unfinished() -> None:
    report = judged([sent(1)], {1: seen(1, "running")})
    assert (report.unfinished, report.ended, report.good) == (1, 0, False)


def test_nothing_sent_is_a_report_too() -> None:
    assert judged([], {}).requests == 0


def test_the_report_fits_60_columns_and_shows_no_control_characters() -> None:
    bad = Seen(runs=[{**run(2, "errored"), "detail": "\x1b[2Jgone"}], jobs=[job(2)])
    lines = report_lines(judged([sent(1), sent(2)], {1: seen(1), 2: bad}))
    assert not any("\x1b" in line for line in lines)
    table = lines[: lines.index("", lines.index("") + 1)]
    assert max(map(len, table)) <= 60
