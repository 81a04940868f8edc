"""`solstice workers` names workers by id or name, and prints them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from solstice_cli.commands.workers import pick
from solstice_cli.output import display, worker_tables
from solstice_common.cli.api_client import Document
from solstice_common.errors import ConfigurationError, ServiceRefused
from solstice_orchestrator.scheduling.workers import Presence, WorkerState

URL = "http://127.0.0.1:8081"
NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def worker(worker_id: str, name: str, presence: str = "alive", **changes: object) -> Document:
    return {
        "worker_id": worker_id,
        "name": name,
        "host": "quay.example",
        "version": "1.2.3",
        "slots": {"linux": 4, "illumos": 1},
        "presence": presence,
        "state": "active",
        "jobs": [{}, {}],
        "seen_at": "2026-01-31T11:59:00.000Z",
        **changes,
    }


WORKERS = [
    worker("quay:7:aa11", "quay"),
    worker("quay:3:bb22", "quay", "lost"),
    worker("pier:5:cc33", "pier"),
    worker("pier:6:dd44", "pier"),
    worker("dock:9:ee55", "dock", "ended"),
]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        pytest.param("quay:3:bb22", "quay:3:bb22", id="the-whole-id"),
        pytest.param("quay", "quay:7:aa11", id="a-name-means-the-one-that-is-there"),
        pytest.param("dock", "dock:9:ee55", id="the-only-one-of-its-name-though-gone"),
        pytest.param("pier:5", "pier:5:cc33", id="the-beginning-of-an-id"),
    ],
)
def test_a_worker_is_named_by_id_or_name(typed: str, found: str) -> None:
    assert pick(WORKERS, typed, URL)["worker_id"] == found


def test_a_name_that_fits_several_asks_for_one_of_their_ids() -> None:
    with pytest.raises(ConfigurationError, match="pier:5:cc33, pier:6:dd44"):
        pick(WORKERS, "pier", URL)


@pytest.mark.parametrize("typed", ["harbour", ""])
def test_a_name_that_fits_none_is_refused(typed: str) -> None:
    with pytest.raises(ServiceRefused, match="solstice workers"):
        pick(WORKERS, typed, URL)


def test_a_pipe_gets_one_line_of_whole_values(capsys: pytest.CaptureFixture[str]) -> None:
    worker_tables.print_workers(
        [worker("quay:7:aa11", "quay", state="paused"), worker("pier:5:cc33", "pier", "lost")], now=NOW
    )
    assert capsys.readouterr().out.splitlines() == [
        "quay:7:aa11\tpaused\t2\tillumos=1,linux=4\tquay.example\t1.2.3\t2026-01-31T11:59:00.000Z\t",
        "pier:5:cc33\tlost\t2\tillumos=1,linux=4\tquay.example\t1.2.3\t2026-01-31T11:59:00.000Z\t",
    ]


@pytest.mark.parametrize(
    ("pressed", "line"),
    [
        ({}, ""),
        ({"shrunk_to": None, "refuses": None}, ""),
        ({"shrunk_to": 2, "refuses": None}, "2 at once"),
        ({"shrunk_to": None, "refuses": "disk"}, "disk"),
        ({"shrunk_to": 1, "refuses": "load"}, "load, 1 at once"),
    ],
)
def test_the_pressure_of_a_worker_is_reported(pressed: dict[str, Any], line: str) -> None:
    assert worker_tables.pressure(worker("quay:7:aa11", "quay") | pressed) == line


def test_every_standing_has_a_look_of_its_own() -> None:
    assert {state.value for state in WorkerState} <= set(display.STATE_STYLE)
    assert {Presence.LOST.value, Presence.ENDED.value} <= set(display.STATE_STYLE)
