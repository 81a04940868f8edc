"""What a soak calls wrong."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from solstice_common.runtime.public_interfaces import public_only
from tests.soak.readings import Reading
from tests.soak.verdict import events_of, figures, of_events, of_jobs, of_log, of_readings


def readings(
    descriptors: Sequence[int] | None = None,
    mebibytes: Sequence[float] | None = None,
    zombies: Iterable[set[int]] | None = None,
) -> list[Reading]:
    columns = (descriptors or [50] * 100, mebibytes or [90.0] * 100, zombies or [set[int]()] * 100)
    return [
        Reading(
            seconds=float(second), descriptors=opened, mebibytes=size, children=1, zombies=frozenset(left)
        )
        for second, (opened, size, left) in enumerate(zip(*columns, strict=True))
    ]


def test_what_stays_as_it_is_is_well() -> None:
    swinging = [50 + 5 * (second % 2) for second in range(100)]
    passing = [{second} for second in range(100)]
    assert of_readings("x", readings(swinging, [90 + second / 10 for second in range(100)], passing)) == []


def test_descriptors_that_grow() -> None:
    (trouble,) = of_readings("x", readings([50 + second // 4 for second in range(100)]))
    assert trouble == "x: descriptors grew from 54 to 72"


def test_memory_that_grows() -> None:
    (trouble,) = of_readings("x", readings(mebibytes=[90.0 + second for second in range(100)]))
    assert "memory grew from 108" in trouble


@pytest.mark.parametrize(("seconds", "wrong"), [(5, False), (6, True)])
def test_a_child_that_is_not_collected(seconds: int, wrong: bool) -> None:
    left = [{7} if 40 <= second < 40 + seconds else set[int]() for second in range(100)]
    assert bool(of_readings("x", readings(zombies=left))) is wrong


def test_too_few_readings_prove_nothing() -> None:
    assert "too few" in of_readings("x", readings()[:19])[0]


def test_what_happens_before_the_end_of_the_warm_up_is_not_growth() -> None:
    assert figures([*range(10), *[20.0] * 90]).first == 20


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"event": "attempt.finished", "level": "info"}', False),
        ('{"event": "workspace.not_removed", "level": "error"}', True),
        ('{"event": "anything.new", "level": "warning"}', True),
        ('{"event": "http.unbounded", "level": "warning"}', not public_only("uvicorn")),
        ('{"event": "x", "level": "info", "detail": "OSError(9, \'Bad file descriptor\')"}', True),
        ("Traceback (most recent call last):", True),
        ("[1, 2]", True),
        ("", False),
    ],
)
def test_lines_of_a_log(line: str, wrong: bool) -> None:
    assert bool(of_events("x", events_of([line]))) is wrong


def test_a_complaint_is_shown_once_with_its_number() -> None:
    (trouble,) = of_events("x", events_of(['{"event": "workspace.not_removed", "level": "error"}'] * 3))
    assert trouble.startswith("x: 3 times the error workspace.not_removed")


def job(number: int, **changes: Any) -> dict[str, Any]:
    return {"job_id": str(number), "state": "succeeded", "reason": "none", "attempt": 1, **changes}


@pytest.mark.parametrize(
    ("jobs", "wrong"),
    [
        ([job(1), job(2)], False),
        ([job(1)], True),
        ([job(1), job(1)], True),
        ([job(1), job(2), job(3)], True),
        ([job(1), job(2, attempt=2)], True),
        ([job(1), job(2, attempt=11)], True),
        ([job(1), job(2, state="failed", reason="exit_code")], True),
    ],
)
def test_jobs(jobs: list[dict[str, Any]], wrong: bool) -> None:
    assert bool(of_jobs(2, jobs)) is wrong


@pytest.mark.parametrize(("ended", "wrong"), [("12", False), ("1", True), ("122", True), ("123", True)])
def test_ends_of_attempts_in_the_log(ended: str, wrong: bool) -> None:
    events = [{"event": "attempt.finished", "job_id": number} for number in ended]
    assert bool(of_log(2, [*events, {"event": "run.planned"}])) is wrong
