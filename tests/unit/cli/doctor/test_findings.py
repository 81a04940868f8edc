"""Findings are as serious as their numbers, and each check has its section."""

import re

import pytest

from solstice_cli.doctor import findings
from solstice_cli.doctor.findings import Check, FoundSchema, Level
from tests.docs_pages import prose


def test_the_page_has_a_section_for_each_check_and_no_others() -> None:
    page = prose(findings.PAGE)
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == [check.value for check in Check]
    for section in sections:
        assert "**failure**" in section or "**warning**" in section, section


@pytest.mark.parametrize(
    ("skew", "level"),
    [
        (0.0, Level.OK),
        (-5.0, Level.OK),
        (5.5, Level.WARNING),
        (-30.0, Level.WARNING),
        (31.0, Level.FAILURE),
        (-3600.0, Level.FAILURE),
    ],
)
def test_a_clock_is_judged_by_its_distance(skew: float, level: Level) -> None:
    found = findings.of_clock(
        {"database": 1.0, "orchestrator": skew} if abs(skew) > 1 else {"database": skew}
    )
    assert found.level is level
    assert bool(found.remedy) is (level is not Level.OK)


def test_a_clock_that_is_behind_is_named_so() -> None:
    assert (
        findings.of_clock({"database": -40.0}).detail == "the clock of the database is 40 s behind this one"
    )
    assert findings.of_clock({}).level is Level.OK


@pytest.mark.parametrize(
    ("free", "limit", "level"),
    [
        (50.0, 5.0, Level.OK),
        (9.9, 5.0, Level.WARNING),
        (4.9, 5.0, Level.FAILURE),
        (4.9, None, Level.FAILURE),
        (4.9, 1.0, Level.OK),
    ],
)
def test_a_disk_is_judged_by_the_governors_limit(free: float, limit: float | None, level: Level) -> None:
    assert findings.of_disk({"/a": 90.0, "/b": free}, limit).level is level


@pytest.mark.parametrize(
    ("git", "problem", "others", "level"),
    [
        (None, None, {}, Level.FAILURE),
        ("git version 2.20.1", "older", {}, Level.WARNING),
        ("git version 2.39.5", None, {"orchestrator": "1.0"}, Level.OK),
        ("git version 2.39.5", None, {"orchestrator": "0.9"}, Level.WARNING),
    ],
)
def test_versions_are_judged_together(
    git: str | None, problem: str | None, others: dict[str, str], level: Level
) -> None:
    assert findings.of_versions("1.0", git, problem, others).level is level


@pytest.mark.parametrize(
    ("version", "pending", "server", "level"),
    [
        (34, 0, None, Level.OK),
        (34, 0, 15, Level.OK),
        (34, 0, 14, Level.FAILURE),
        (30, 4, None, Level.WARNING),
        (0, 34, 16, Level.WARNING),
    ],
)
def test_a_schema_is_judged_by_what_it_misses(
    version: int, pending: int, server: int | None, level: Level
) -> None:
    schema = FoundSchema(where="here", version=version, pending=pending, server=server)
    assert findings.of_schema(Check.DATABASE, schema).level is level


def test_a_service_is_judged_by_its_own_answer() -> None:
    def judged(status: int, document: dict[str, object]) -> Level:
        return findings.of_readiness(Check.WEBHOOKS, "it", status, document).level

    assert judged(200, {"missing": {}, "notices": {}}) is Level.OK
    assert judged(200, {"missing": {}, "notices": {"broker": "degraded"}}) is Level.WARNING
    assert judged(503, {"missing": {"broker": "away"}}) is Level.FAILURE
    assert judged(200, {}) is Level.FAILURE  # another program listens there
