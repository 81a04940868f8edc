"""`solstice why` prints why a job or a run waits, on terminals and pipes."""

from datetime import UTC, datetime

import pytest

from solstice_cli.commands.outcomes.why import _print
from solstice_common.cli.api_client import Document

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def answer(**changes: object) -> Document:
    why = {
        "reason": "slots_busy",
        "detail": "Others have all 4 slots of linux; 3 jobs before it.",
        "since": "2026-01-31T11:59:00.000Z",
        "ahead": 3,
        "until": None,
        "holders": [
            {
                "run_id": "run-1",
                "job_id": "job-1",
                "name": "build",
                "repository": "acme/app",
                "worker_id": "quay:7",
                "started_at": "2026-01-31T11:58:00.000Z",
            },
            {
                "run_id": "run-2",
                "job_id": None,
                "name": "",
                "repository": "acme/app",
                "worker_id": None,
                "started_at": None,
            },
        ],
        "expected_start": {"earliest": "2026-01-31T12:00:30.000Z", "latest": "2026-01-31T12:02:00.000Z"},
        **changes,
    }
    return {"job_id": "job-9", "run_id": "run-9", "name": "test", "state": "waiting", "why": why}


def test_the_reason_the_position_and_the_expected_start_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print([answer()], NOW)
    assert capsys.readouterr().out.splitlines() == [
        "job     job-9",
        "name    test",
        "state   waiting",
        "reason  slots_busy",
        "why     Others have all 4 slots of linux; 3 jobs before it.",
        "waits   1 min 0 s",
        "ahead   3",
        "starts  in 30 s to 2 min 0 s, as an estimate",
        "  job job-1 build of acme/app, on quay:7 for 2 min 0 s",
        "  run run-2 of acme/app",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {
                "expected_start": {
                    "earliest": "2026-01-31T12:00:30.000Z",
                    "latest": "2026-01-31T12:00:30.000Z",
                }
            },
            "starts  in about 30 s",
        ),
        ({"until": "2026-01-31T12:01:00.000Z"}, "until   2026-01-31T12:01:00.000Z"),
    ],
    ids=["a narrow range", "a backoff"],
)
def test_some_answers_say_more(
    changes: dict[str, object], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print([answer(**changes)], NOW)
    assert expected in capsys.readouterr().out.splitlines()


def test_unknown_values_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    _print([answer(ahead=None, expected_start=None, holders=[])], NOW)
    out = capsys.readouterr().out
    assert "ahead" not in out
    assert "starts" not in out


def test_what_does_not_wait_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    _print([{"run_id": "run-9", "state": "running", "why": None}], NOW)
    assert capsys.readouterr().out.splitlines() == [
        "run    run-9",
        "state  running",
        "why    it does not wait",
    ]
