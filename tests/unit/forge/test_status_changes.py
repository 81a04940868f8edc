"""What a call's end changes in the row of a status, and what the forge is told of whom."""

from typing import Any

import pytest

from solstice_forge.statuses.call_endings import Reported, RetryLater, Undeliverable
from solstice_forge.statuses.changes import after
from solstice_forge.statuses.protocol import OutgoingStatus, Phase
from solstice_forge.statuses.wanted_status import commit_status, place
from tests.statuses import job_status, run_id

NOW = 1_790_000_000.0
HORIZON = 30.0


def row(**changes: Any) -> dict[str, Any]:
    """Of the first status of the first run, which is under way."""
    return {
        "run_id": run_id(1),
        "sequence": 1,
        "revision": 0,
        "calls": 4,
        "failures": 0,
        "failing_since": None,
        "unsure": "",
        "unsure_until": 0.0,
        **changes,
    }


def telling(**changes: Any) -> OutgoingStatus:
    values: dict[str, Any] = {
        "row_id": 1,
        "repository": "river/app",
        "place": place(run_id(1), 1, 0),
        "run_id": run_id(1),
        "state": "running",
        "final": False,
        "request_id": run_id(1),
        "kept_at": NOW - 5,
        "body": b"",
        "failures": 0,
        "failing_since": None,
        "since": NOW - 1,
        "calls": 4,
        "check_id": None,
    }
    return OutgoingStatus(**{**values, **changes})


def again(**changes: Any) -> RetryLater:
    return RetryLater(**{"at": NOW + 2, "why": "502", "failed": True, "unsure": False, **changes})


@pytest.mark.parametrize("since", [None, NOW - 3600], ids=["first", "tenth"])
def test_failures_in_a_row_are_counted_from_the_first(since: float | None) -> None:
    columns = after(row(failures=9, failing_since=since), telling(), again(), now=NOW, horizon=HORIZON)
    assert (columns["failures"], columns["failing_since"]) == (10, NOW if since is None else since)
    assert (columns["next_at"], columns["last_failure"], columns["flying"]) == (NOW + 2, "502", "")
    assert not {"phase", "calls", "unsure"} & set(columns)


def test_a_limit_counts_as_no_failure() -> None:
    columns = after(row(), telling(), again(failed=False), now=NOW, horizon=HORIZON)
    assert not {"failures", "failing_since"} & set(columns)


def test_what_the_forge_may_still_get_counts_as_a_call_and_holds_up_a_newer_one() -> None:
    newer = row(sequence=2)
    columns = after(newer, telling(), again(unsure=True), now=NOW, horizon=HORIZON)
    assert (columns["calls"], columns["unsure"]) == (5, telling().place)
    assert columns["next_at"] == columns["unsure_until"] == NOW - 1 + HORIZON
    # The same one may go out again meanwhile: it overtakes nothing.
    assert after(row(), telling(), again(unsure=True), now=NOW, horizon=HORIZON)["next_at"] == NOW + 2


def test_a_call_that_stalled_holds_up_a_newer_one_from_its_end_as_well() -> None:
    columns = after(row(sequence=2), telling(since=NOW - 600), again(unsure=True), now=NOW, horizon=HORIZON)
    assert columns["unsure_until"] == NOW + HORIZON / 2


def test_what_was_told_ends_the_failures_and_a_newer_one_goes_out_at_once() -> None:
    failing = {"failures": 9, "failing_since": NOW - 60}
    columns = after(row(**failing), telling(), Reported(check_id=7), now=NOW, horizon=HORIZON)
    assert (columns["phase"], columns["calls"], columns["told_state"]) == (Phase.TOLD.value, 5, "running")
    assert (columns["failures"], columns["failing_since"], columns["check_id"]) == (0, None, 7)
    newer = after(row(sequence=2, **failing), telling(), Reported(), now=NOW, horizon=HORIZON)
    assert "phase" not in newer
    assert newer["next_at"] == NOW


def test_what_the_forge_never_takes_is_dead_and_says_why() -> None:
    dead = Undeliverable(reason="not_found", detail="404 Not Found")
    columns = after(row(failures=9), telling(), dead, now=NOW, horizon=HORIZON)
    assert (columns["phase"], columns["last_failure"], columns["failures"]) == (
        Phase.DEAD.value,
        "404 Not Found",
        0,
    )


def test_the_forge_is_told_whose_status_it_is() -> None:
    of_run = commit_status("river/app", job_status().encode())
    of_job = commit_status("river/app", job_status(job_id=run_id(7), job_name="build").encode())
    assert (of_run.external_id, of_job.external_id) == (run_id(1), run_id(7))
