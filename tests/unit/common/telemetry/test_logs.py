"""Each log event is one line of JSON, without values of variables."""

import json
import logging

import pytest
import structlog

from solstice_common.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def _environment(logging_as_it_was: None) -> None:
    pass


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_an_event_is_one_line_of_json_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger("solstice_test.one").info("job.claimed", job_id="j-1", attempt=2)
    (line,) = lines(capsys)
    assert line.pop("timestamp")
    assert line == {
        "event": "job.claimed",
        "level": "info",
        "logger": "solstice_test.one",
        "request_id": "r-1",
        "job_id": "j-1",
        "attempt": 2,
    }


def test_events_of_libraries_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    logging.getLogger("some.library").warning("lost %s", "it")
    (line,) = lines(capsys)
    assert (line["event"], line["level"], line["logger"]) == ("lost it", "warning", "some.library")


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "warning")
    structlog.get_logger("solstice_test.two").info("job.claimed")
    logging.getLogger("some.library").info("chatter")
    assert lines(capsys) == []


def test_a_traceback_does_not_show_the_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    password = "hu" + "sh"
    try:
        dict[int, str]()[len(password)]
    except KeyError:
        structlog.get_logger("solstice_test.three").exception("job.crashed")
    (line,) = lines(capsys)
    assert "KeyError" in json.dumps(line)
    assert "hush" not in json.dumps(line)


def test_on_a_terminal_an_event_is_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("console")
    structlog.get_logger("solstice_test.four").info("job.claimed", job_id="j-1")
    captured = capsys.readouterr()
    assert "job.claimed" in captured.err
    assert captured.out == ""
