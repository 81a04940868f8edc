"""The answer for autoscalers, from a real server, read as KEDA reads it."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.values.times import format_timestamp
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.stores import worker_record

QUANTITY = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def metric(document: Any, location: str) -> Decimal:
    r"""The value at a GJSON path, as KEDA's `metrics-api` scaler reads it.

    A number, or a text that is a quantity.

    A dot parts names, a backslash before it does not: `labels.linux\.arm64.waiting`.
    """
    for escaped in re.split(r"(?<!\\)\.", location):
        document = document[re.sub(r"\\(.)", r"\1", escaped)]
    if isinstance(document, str) and QUANTITY.fullmatch(document):
        return Decimal(document)
    assert isinstance(document, int | float)
    assert not isinstance(document, bool)
    return Decimal(str(document))


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as served:
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"{web.url}/api/v1", timeout=20, trust_env=False) as client:
        yield client


async def scale(http: httpx2.AsyncClient, **parameters: str | int) -> Any:
    answer = await http.get("/scale", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_everything_is_zero_for_a_label_without_jobs(web: WebServer, http: httpx2.AsyncClient) -> None:
    found = await scale(http, label="linux-arm64.v8")
    for location in (
        "waiting",
        "running",
        "slots",
        "wanted_slots",
        "expected_work_seconds",
        "oldest_wait_seconds",
        "delayed",
        "held_back.blocked",
        r"labels.linux-arm64\.v8.wanted_slots",
    ):
        assert metric(found, location) == 0
    assert await scale(http) | {"at": ""} == found | {"at": "", "labels": {}}


async def test_from_no_worker_at_all_what_waits_wants_slots(web: WebServer, http: httpx2.AsyncClient) -> None:
    await web.plan(spec("a"), spec("b"), spec("c", needs=("a",)), spec("d", runs_on="linux.arm64"))
    one = await scale(http, label="linux")
    assert [metric(one, name) for name in ("waiting", "wanted_slots", "slots", "running")] == [2, 2, 0, 0]
    assert metric(one, "held_back.blocked") == 1
    assert list(one["labels"]) == ["linux"]
    every = await scale(http)
    assert metric(every, r"labels.linux\.arm64.wanted_slots") == 1
    assert metric(every, "labels.linux.waiting") == 2
    assert metric(every, "waiting") == 3


async def test_what_was_learnt_says_how_many_slots_the_target_takes(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    await web.store.register(worker_record("worker-9"))
    for _ in range(3):
        await web.finish(await web.running())
    await web.plan(*(spec(f"job-{number}") for number in range(20)))
    found = await scale(http, label="linux", target_seconds=3600)
    assert (found["samples"], found["slots"], found["waiting"]) == (3, 4, 20)
    # They last no time at all here.
    assert found["wanted_slots"] == 1
    assert found["target_seconds"] == 3600


async def test_delayed_runs_are_reported_within_the_target(web: WebServer, http: httpx2.AsyncClient) -> None:
    now = datetime.now(UTC)
    soon, tomorrow = (format_timestamp(now + timedelta(hours=hours)) for hours in (0.5, 24))
    await web.admit(not_before=soon, runs_on="linux")
    await web.admit(not_before=soon)
    await web.admit(not_before=tomorrow, runs_on="linux")
    within = await scale(http, target_seconds=3600)
    assert (within["delayed"], within["labels"]["linux"]["delayed"]) == (2, 1)
    assert (await scale(http, label="linux"))["delayed"] == 0


@pytest.mark.parametrize(
    "parameters",
    [{"label": "no label"}, {"target_seconds": "0"}, {"target_seconds": "1.5"}, {"target": "1"}],
    ids=["label", "no time", "no integer", "unknown"],
)
async def test_what_makes_no_sense_is_refused(http: httpx2.AsyncClient, parameters: dict[str, str]) -> None:
    answer = await http.get("/scale", params=parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_parameter")


async def test_delayed_runs_have_a_gauge(web: WebServer) -> None:
    await web.admit(not_before=format_timestamp(datetime.now(UTC) + timedelta(hours=1)))
    async with httpx2.AsyncClient(base_url=web.url, timeout=20, trust_env=False) as client:
        text = (await client.get("/metrics")).text
        page = (await client.get("/")).text
    assert "\nsolstice_delayed_runs 1.0\n" in text
    assert "Delayed" in page
