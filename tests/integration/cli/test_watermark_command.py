"""`solstice watermarks` and its API, against a real server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.integration.cli.test_narrow import on_a_terminal
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.servers.service_process import base_environment

LONG: Final = "a-very-long-owner-name/a-very-long-repository-name"
SHOW: Final = "from solstice_cli.main import app\napp({words!r})"


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as served:
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"{web.url}/api/v1", timeout=60, trust_env=False) as client:
        yield client


async def solstice(web: WebServer, *words: str) -> str:
    """What the command prints into a pipe."""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "solstice_cli", "watermarks", "--solstice-url", web.url, *words],
        capture_output=True,
        text=True,
        check=True,
        env=base_environment(),
    )
    return ended.stdout


async def test_the_command_shows_what_the_api_answers(web: WebServer, http: httpx2.AsyncClient) -> None:
    assert await solstice(web) == ""
    first, jobs = await web.plan(spec())
    await web.store.cancel_run(first.run_id)
    second = await web.admit()
    other = await web.admit(repo_full_name=LONG, ref="refs/tags/v1")
    document = json.loads(await solstice(web, "--json"))
    answered = (await http.get("/watermarks")).json()["watermarks"]
    assert [{**each, "lag_seconds": 0.0} for each in document["watermarks"]] == [
        {**each, "lag_seconds": 0.0} for each in answered
    ]
    named, harbour = document["watermarks"]
    assert harbour["handled"]["run_id"] == first.run_id
    assert (harbour["pending"], [each["run_id"] for each in harbour["pushes"]]) == (1, [second.run_id])
    assert harbour["lag_seconds"] >= 0.0
    assert (named["handled"], named["pushes"][0]["run_id"]) == (None, other.run_id)
    lines = [line.split("\t") for line in (await solstice(web, "--behind", "--branch", "main")).splitlines()]
    ((*cells, _),) = lines
    assert cells == [
        *("harbour/lighthouse", "refs/heads/main", first.run_id, "cancelled", first.commit_sha, "1")
    ]
    assert await solstice(web, "--repository", "no/one") == ""
    words = ["watermarks", "--solstice-url", web.url]
    shown = await asyncio.to_thread(on_a_terminal, SHOW.format(words=words), 60)
    assert all(len(line.rstrip()) <= 60 for line in shown.splitlines())
    assert "\u2026" not in shown
    assert first.run_id[-8:] in shown
    assert jobs


async def test_pages_go_on_behind_a_ref_and_wrong_questions_are_refused(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    for branch in ("a", "b", "🌊" * 200):
        await web.admit(ref=f"refs/heads/{branch}")

    async def page(**parameters: Any) -> Any:
        answer = await http.get("/watermarks", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    found, after = [], ""
    while True:
        document = await page(limit=1, behind=1, after=after)
        found += [each["ref"] for each in document["watermarks"]]
        if document["next"] is None:
            break
        after = document["next"]
        refused = await http.get("/watermarks", params={"after": after, "behind": 0})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_cursor")
    assert sorted(found) == sorted(f"refs/heads/{branch}" for branch in ("a", "b", "🌊" * 200))
    wrong = await http.get("/watermarks", params={"behind": "yes"})
    assert wrong.json()["error"]["code"] == "invalid_parameter"


async def test_metrics_have_the_largest_lag_and_no_names(web: WebServer) -> None:
    async with httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client:
        assert "solstice_watermark_lag_seconds 0.0" in (await client.get("/metrics")).text
        await web.admit()
        text = (await client.get("/metrics")).text
    assert "solstice_refs_behind 1.0" in text
    assert "harbour" not in text
