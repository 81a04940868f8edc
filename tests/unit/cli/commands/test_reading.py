"""What `solstice show` says about a run."""

import pytest

from solstice_cli.commands.reading import _requested_by, _without_jobs


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ({"source": "manual", "event": "manual"}, "manual"),
        ({"source": "manual", "event": None}, "manual"),
        ({"source": "forgejo", "event": "push", "sender": "mika"}, "forgejo push by mika"),
        ({"source": "manual", "event": "schedule", "sender": None}, "manual schedule"),
    ],
    ids=["by hand", "before events had names", "push", "schedule"],
)
def test_who_asked_for_a_run_is_reported_without_repeating_a_word(
    run: dict[str, str | None], text: str
) -> None:
    assert _requested_by(run) == text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("planning", "No jobs yet: the workflow is being read."),
        ("delayed", "No jobs yet: it starts later."),
        *(
            (state, "No jobs: the run ended before it had any.")
            for state in ("errored", "cancelled", "timed_out")
        ),
    ],
)
def test_a_run_that_ended_without_jobs_waits_for_none(state: str, text: str) -> None:
    assert _without_jobs(state) == text
