"""Statuses as rows of a database, and back."""

from typing import Any

import pytest

from solstice_forge.statuses.protocol import ContextStatus, OutgoingStatus, ReportPhase, StatusDeadLetter
from solstice_forge.statuses.rows import columns_of, context_status_of, dead_letter_of, outgoing_status_of
from tests.statuses import SHA, reportable_status, run_id

NOW = 1_790_000_000.0


def row(**changes: Any) -> dict[str, Any]:
    return {
        **columns_of(reportable_status("running", sequence=3), NOW - 60),
        "row_id": 9,
        "stored_at": NOW - 60,
        "phase": "reported",
        "reported_state": "waiting",
        "reported_at": NOW - 30,
        "failures": 2,
        "failing_since": NOW - 20,
        "last_failure": "502",
        "next_at": NOW + 5,
        "calls": 4,
        "check_id": 7,
        "check_run_id": run_id(1),
        **changes,
    }


def test_status_that_arrived_is_stored_with_its_place_and_time() -> None:
    status = reportable_status("succeeded", sequence=3, revision=1)
    assert columns_of(status, NOW) == {
        "source_name": "forgejo",
        "repository": "river/app",
        "commit_sha": SHA,
        "context": "solstice/build",
        "run_id": run_id(1),
        "sequence": 3,
        "revision": 1,
        "state": "succeeded",
        "final": True,
        "request_id": run_id(1),
        "body": status.body,
        "now": NOW,
        "place": f"{run_id(1)}.3.1",
    }


def test_status_goes_out_with_what_is_known_of_its_failures() -> None:
    # SQLite gives numbers for truth and PostgreSQL views of bytes.
    answered = outgoing_status_of(row(final=1, body=memoryview(b"{}")), "a-place", NOW)
    assert answered == OutgoingStatus(
        row_id=9,
        repository="river/app",
        place="a-place",
        run_id=run_id(1),
        state="running",
        final=True,
        request_id=run_id(1),
        stored_at=NOW - 60,
        body=b"{}",
        failures=2,
        failing_since=NOW - 20,
        since=NOW,
        calls=4,
        check_id=7,
    )


def test_check_of_another_run_is_not_changed() -> None:
    assert outgoing_status_of(row(check_run_id=run_id(2)), "p", NOW).check_id is None


def test_context_is_shown_as_the_forge_shows_it_and_why_not() -> None:
    assert context_status_of(row()) == ContextStatus(
        source_name="forgejo",
        repository="river/app",
        commit_sha=SHA,
        context="solstice/build",
        run_id=run_id(1),
        state="running",
        phase=ReportPhase.REPORTED,
        reported_state="waiting",
        reported_at=NOW - 30,
        failures=2,
        last_failure="502",
        next_at=NOW + 5,
    )


@pytest.mark.parametrize("body", [b"{}", memoryview(b"{}")], ids=["SQLite", "PostgreSQL"])
def test_dead_letter_is_published_as_it_was_stored(body: bytes | memoryview) -> None:
    stored_row = {"row_id": 3, "request_id": run_id(1), "body": body, "headers": '{"x-solstice-attempt": 2}'}
    assert dead_letter_of(stored_row) == StatusDeadLetter(
        row_id=3, request_id=run_id(1), body=b"{}", headers={"x-solstice-attempt": 2}
    )
