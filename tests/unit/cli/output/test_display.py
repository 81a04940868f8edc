"""States have their looks; text of strangers cannot steer a terminal."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from solstice_cli.output import display
from solstice_common.cli.api_client import Document
from solstice_common.cli.tables import fitting
from solstice_common.messages.states import FINAL, JobState, RunState

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def test_a_run_ends_in_the_states_in_which_jobs_end() -> None:
    assert {state.value for state in RunState if state.final} == {state.value for state in FINAL}


def test_every_final_state_has_a_look_of_its_own() -> None:
    assert {state.value for state in JobState if state.final} <= set(display.STATE_STYLE)


def run(**changes: object) -> Document:
    return {
        "run_id": "0193e0a0-0000-7000-8000-000000000001",
        "state": "succeeded",
        "repo_url": "https://forge.example/acme/anvil.git",
        "repo_full_name": "acme/anvil",
        "commit_sha": "c" * 40,
        "ref": "refs/heads/main",
        "event": "push",
        "source": "forgejo",
        "created_at": "2026-01-31T11:58:00.000Z",
        "started_at": "2026-01-31T11:58:01.000Z",
        "finished_at": "2026-01-31T11:58:03.500Z",
        **changes,
    }


def test_a_pipe_gets_whole_values_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    display.print_runs([run()], now=NOW)
    assert capsys.readouterr().out.rstrip("\n").split("\t") == [
        "0193e0a0-0000-7000-8000-000000000001",
        "succeeded",
        "acme/anvil",
        "c" * 40,
        "refs/heads/main",
        "push",
        "2026-01-31T11:58:00.000Z",
        "2.5",
    ]


HOSTILE = "main\tx\nsecond\r\x1b]0;title\x07\x1b[2J\x1b[31mred"


def test_a_strangers_words_stay_in_their_place_and_steer_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    display.print_runs([run(ref=HOSTILE, event=HOSTILE)], now=NOW)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split("\t")[4:6] == ["main x second red"] * 2
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    display.print_runs([run(ref=HOSTILE)], now=NOW)
    display.print_facts([("detail", HOSTILE)])
    shown = capsys.readouterr().out
    assert not re.search(r"\x1b(?!\[[012]?m)|[\x07\r]", shown)
    assert "title" not in shown


def test_only_what_knows_of_pipes_makes_tables() -> None:
    """Rich pads and folds its tables in a pipe.

    Lists therefore go through `print_rows` or ask for a terminal.
    """
    makers = {
        path.name
        for room in ("common", "services")
        for path in Path(room).rglob("*.py")
        if "rich.table" in path.read_text()
    }
    assert makers == {"tables.py", "simulation_tables.py", "statuses_command.py"}


def test_a_pipe_gets_nothing_when_there_is_nothing_and_standard_error_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display.print_runs([], now=NOW)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("No runs yet. Push to a repository")


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        *(
            ("waiting", "No attempts yet: the job waits ('solstice why').\n"),
            ("skipped", "No attempts: the job is skipped.\n"),
        ),
        ("cancelled", "No attempts: the job is cancelled.\n"),
    ],
)
def test_a_job_without_attempts_waits_only_before_its_end(
    state: str, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    display.print_attempts([], now=NOW, state=state)
    assert capsys.readouterr().err == reported


def test_attempts_show_their_images_where_one_has_any(capsys: pytest.CaptureFixture[str]) -> None:
    bare = {"number": 1, "state": "errored", "reason": "checkout_failed", "worker_id": "w", "exit_code": None}
    bare |= {"step": None, "started_at": "2026-01-31T11:58:01.000Z", "finished_at": None, "detail": "gone"}
    image = "docker.io/library/python:3.12@sha256:" + "a" * 64
    display.print_attempts([{**bare, "image": ""}, {**bare, "image": image}], now=NOW, state="running")
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[-2:] == ["gone", ""]
    assert second.split("\t")[-2:] == ["gone", image]
    display.print_attempts([{**bare, "image": ""}], now=NOW, state="running")
    assert capsys.readouterr().out.rstrip("\n").split("\t")[-1] == "gone"


@pytest.mark.parametrize(
    ("width", "shown"),
    [(60, ["ID", "REASON", "REPOSITORY"]), (80, ["ID", "QUEUE", "REASON", "REPOSITORY", "DETAIL"])],
)
def test_a_narrow_list_of_dead_letters_keeps_their_reasons(width: int, shown: list[str]) -> None:
    columns = ("ID", "AGE", "QUEUE", "REASON", "REPOSITORY", "PRIORITY", "REQUEST", "DETAIL")
    places = fitting(columns, (16, 5, 20, 15, 20, 8, 36, 120), width, display.LAYOUT)
    assert [columns[place] for place in places] == shown


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    display.print_runs([run(ref="refs/heads/[bold]x")], now=NOW)
    # Without colour there is still bold and dim.
    heading, row = re.sub(r"\x1b\[[12]?m|\x1b\[0m", "", capsys.readouterr().out).splitlines()
    assert heading.split()[:3] == ["RUN", "STATE", "REPOSITORY"]
    assert row.split() == [
        *("00000001", "succeeded", "acme/anvil", "cccccccccc", "[bold]x"),
        *("push", "2", "min", "2.5", "s"),
    ]


def test_colour_is_left_out_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    display.print_runs([run()], now=NOW)
    assert "\x1b[3" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    display.print_runs([run()], now=NOW)
    assert "\x1b[3" not in capsys.readouterr().out
