"""How a call's end changes a status row, and which context a forge shows."""

from typing import Any

import pytest

from solstice_common.broker.headers import DETAIL_CHARACTERS
from solstice_forge.statuses.call_endings import Reported, RetryLater, Undeliverable
from solstice_forge.statuses.changes import after, dead_letter_headers, is_under_way, not_before, orphaned
from solstice_forge.statuses.protocol import OutgoingStatus, ReportPhase
from solstice_forge.statuses.reportable_status import commit_status, place
from tests.statuses import job_status, run_id

NOW = 1_790_000_000.0
HORIZON = 30.0


def row(**changes: Any) -> dict[str, Any]:
    """The row of the first run's first status, which is under way."""
    return {
        "run_id": run_id(1),
        "sequence": 1,
        "revision": 0,
        "calls": 4,
        "failures": 0,
        "failing_since": None,
        "unconfirmed_place": "",
        "unconfirmed_until": 0.0,
        **changes,
    }


def outgoing_status(**changes: Any) -> OutgoingStatus:
    values: dict[str, Any] = {
        "row_id": 1,
        "repository": "river/app",
        "place": place(run_id(1), 1, 0),
        "run_id": run_id(1),
        "state": "running",
        "final": False,
        "request_id": run_id(1),
        "stored_at": NOW - 5,
        "body": b"",
        "failures": 0,
        "failing_since": None,
        "since": NOW - 1,
        "calls": 4,
        "check_id": None,
    }
    return OutgoingStatus(**{**values, **changes})


def again(**changes: Any) -> RetryLater:
    return RetryLater(**{"at": NOW + 2, "why": "502", "failed": True, "perhaps_done": False, **changes})


@pytest.mark.parametrize("since", [None, NOW - 3600], ids=["first", "tenth"])
def test_failures_in_a_row_are_counted_from_the_first(since: float | None) -> None:
    columns = after(
        row(failures=9, failing_since=since), outgoing_status(), again(), now=NOW, horizon=HORIZON
    )
    assert (columns["failures"], columns["failing_since"]) == (10, NOW if since is None else since)
    assert (columns["next_at"], columns["last_failure"], columns["call_place"]) == (NOW + 2, "502", "")
    assert not {"phase", "calls", "unconfirmed_place"} & set(columns)


def test_a_limit_counts_as_no_failure() -> None:
    columns = after(row(), outgoing_status(), again(failed=False), now=NOW, horizon=HORIZON)
    assert not {"failures", "failing_since"} & set(columns)


def test_what_the_forge_may_still_get_counts_as_a_call_and_holds_up_a_newer_one() -> None:
    newer = row(sequence=2)
    columns = after(newer, outgoing_status(), again(perhaps_done=True), now=NOW, horizon=HORIZON)
    assert (columns["calls"], columns["unconfirmed_place"]) == (5, outgoing_status().place)
    assert columns["next_at"] == columns["unconfirmed_until"] == NOW - 1 + HORIZON
    # The same one may go out again meanwhile: it overtakes nothing.
    assert (
        after(row(), outgoing_status(), again(perhaps_done=True), now=NOW, horizon=HORIZON)["next_at"]
        == NOW + 2
    )


def test_a_call_that_stalled_holds_up_a_newer_one_from_its_end_as_well() -> None:
    columns = after(
        row(sequence=2), outgoing_status(since=NOW - 600), again(perhaps_done=True), now=NOW, horizon=HORIZON
    )
    assert columns["unconfirmed_until"] == NOW + HORIZON / 2


def test_a_success_ends_the_failures_and_a_newer_status_goes_out_at_once() -> None:
    failing = {"failures": 9, "failing_since": NOW - 60}
    columns = after(row(**failing), outgoing_status(), Reported(check_id=7), now=NOW, horizon=HORIZON)
    assert (columns["phase"], columns["calls"], columns["reported_state"]) == (
        ReportPhase.REPORTED.value,
        5,
        "running",
    )
    assert (columns["failures"], columns["failing_since"], columns["check_id"]) == (0, None, 7)
    newer = after(row(sequence=2, **failing), outgoing_status(), Reported(), now=NOW, horizon=HORIZON)
    assert "phase" not in newer
    assert newer["next_at"] == NOW


def test_what_the_forge_never_takes_is_dead_and_says_why() -> None:
    dead = Undeliverable(reason="not_found", detail="404 Not Found")
    columns = after(row(failures=9), outgoing_status(), dead, now=NOW, horizon=HORIZON)
    assert (columns["phase"], columns["last_failure"], columns["failures"]) == (
        ReportPhase.DEAD.value,
        "404 Not Found",
        0,
    )


def test_the_forge_gets_the_context_of_the_status() -> None:
    of_run = commit_status("river/app", job_status().encode())
    of_job = commit_status("river/app", job_status(job_id=run_id(7), job_name="build").encode())
    assert (of_run.external_id, of_job.external_id) == (run_id(1), run_id(7))


@pytest.mark.parametrize(
    ("unconfirmed_place", "at"),
    [("", NOW), (place(run_id(1), 1, 0), NOW), (place(run_id(1), 0, 0), NOW + 20)],
    ids=["nothing open", "the same open", "an older one open"],
)
def test_status_waits_while_an_older_one_may_still_arrive(unconfirmed_place: str, at: float) -> None:
    assert not_before(row(unconfirmed_place=unconfirmed_place, unconfirmed_until=NOW + 20), NOW) == at
    assert not_before(row(unconfirmed_place=unconfirmed_place, unconfirmed_until=NOW - 20), NOW) == NOW


def test_call_of_a_process_that_died_counts_and_may_still_arrive() -> None:
    under_way = {"call_started_at": NOW - 600, "call_place": place(run_id(1), 0, 0), "next_at": NOW - 500}
    columns = orphaned(row(**under_way), NOW, HORIZON)
    assert columns == {
        "call_started_at": None,
        "call_place": "",
        "calls": 5,
        "unconfirmed_place": under_way["call_place"],
        "unconfirmed_until": NOW + HORIZON,
        "next_at": NOW + HORIZON,
    }
    longer = orphaned(row(**under_way, unconfirmed_until=NOW + 99), NOW, HORIZON)
    assert longer["unconfirmed_until"] == NOW + 99
    same = orphaned(row(**{**under_way, "call_place": place(run_id(1), 1, 0)}), NOW, HORIZON)
    assert same["next_at"] == NOW - 500


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"call_started_at": NOW}, False),
        ({"call_place": "another"}, False),
        ({"call_started_at": None}, False),
    ],
    ids=["this call", "a later call", "another status", "no call"],
)
def test_end_of_a_call_counts_only_for_the_row_that_waits_for_it(
    changes: dict[str, Any], *, waits: bool
) -> None:
    under_way = {"call_started_at": outgoing_status().since, "call_place": outgoing_status().place}
    assert is_under_way(row(**{**under_way, **changes}), outgoing_status()) is waits


def test_dead_letter_of_a_status_says_why_where_and_when() -> None:
    dead = Undeliverable(reason="not_found", detail="404 " + "x" * 5000)
    headers = dead_letter_headers(outgoing_status(failures=2), dead, NOW + 0.25)
    detail = str(headers.pop("x-solstice-detail"))
    assert headers == {
        "x-solstice-reason": "not_found",
        "x-solstice-queue": "solstice.statuses.v1",
        "x-solstice-refused-at": "2026-09-21T14:13:20.250Z",
        "x-solstice-refused-by": "forge-integration",
        "x-solstice-attempt": 3,
    }
    assert dead.detail.startswith(detail)
    assert len(detail) == DETAIL_CHARACTERS


def test_status_without_a_check_keeps_the_rows_check() -> None:
    columns = after(row(), outgoing_status(), Reported(), now=NOW, horizon=HORIZON)
    assert not {"check_id", "check_run_id"} & set(columns)
    assert (columns["reported_at"], columns["last_failure"], columns["call_started_at"]) == (NOW, "", None)
    checked = after(row(), outgoing_status(), Reported(check_id=0), now=NOW, horizon=HORIZON)
    assert (checked["check_id"], checked["check_run_id"]) == (0, run_id(1))


def test_wait_that_was_longer_stays() -> None:
    columns = after(
        row(sequence=2, unconfirmed_until=NOW + 99),
        outgoing_status(),
        again(perhaps_done=True),
        now=NOW,
        horizon=HORIZON,
    )
    assert columns["unconfirmed_until"] == columns["next_at"] == NOW + 99
