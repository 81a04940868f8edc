"""`solstice schedules` against a real server over a real store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from solstice_cli.main import app
from tests.repositories import Repository
from tests.schedules import COMMIT, claimed_tick
from tests.servers.orchestrator_web import WebServer, serve_web

URL = "https://forge.example/harbour/lighthouse.git"
NIGHTLY = ("nightly", "--repo-url", URL, "--branch", "main", "--cron", "30 2 * * *")


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path / "store") as served:
        yield served


async def solstice(web: WebServer, *arguments: str) -> Result:
    """The command, in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(
        CliRunner().invoke, app, ("schedules", *arguments), env={"SOLSTICE_URL": web.url}
    )


async def output_of(web: WebServer, *arguments: str) -> str:
    result = await solstice(web, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def answer_of(web: WebServer, *arguments: str) -> Any:
    return json.loads(await output_of(web, *arguments, "--json"))


async def test_a_schedule_is_added_listed_and_shown(web: WebServer) -> None:
    added = await output_of(
        web, "add", *NIGHTLY, "--timezone", "Europe/Berlin", "--repo-full-name", "harbour/lighthouse"
    )
    assert added.startswith("schedule nightly added: next tick 2")
    row = (await output_of(web, "list")).rstrip("\n").split("\t")
    assert row[:6] == ["nightly", "new", "30 2 * * *", "Europe/Berlin", "harbour/lighthouse", "main"]
    assert (await output_of(web)).rstrip("\n").split("\t") == row
    assert (await answer_of(web, "list", "--branch", "fog"))["schedules"] == []
    shown = await output_of(web, "show", "nightly")
    assert "Europe/Berlin" in shown
    assert (await answer_of(web, "show", "nightly"))["ticks"] == []


async def test_what_became_of_ticks_is_shown(web: WebServer) -> None:
    await output_of(web, "add", *NIGHTLY)
    assert await output_of(web, "fire", "nightly") == "schedule nightly fires now\n"
    settled = await web.store.schedule_store.fired(await claimed_tick(web.store.schedule_store), COMMIT)
    assert settled is not None
    tick = (await output_of(web, "show", "nightly")).splitlines()[-1].split("\t")
    assert tick[1:6] == ["planning", "by_hand", "1", settled.run_id, COMMIT]
    assert (await output_of(web, "list")).rstrip("\n").split("\t")[-1] == settled.run_id


async def test_the_next_ten_ticks_are_printed(web: WebServer) -> None:
    await output_of(web, "add", *NIGHTLY)
    ticks = [row.split("\t") for row in (await output_of(web, "next", "nightly")).splitlines()]
    assert len(ticks) == 10
    assert all("T02:30:00+00:00" in local and "T02:30:00.000Z" in utc for local, utc in ticks)
    assert len((await answer_of(web, "next", "nightly", "--count", "3"))["ticks"]) == 3


async def test_it_is_changed_and_what_may_be_absent_is_taken_away(web: WebServer) -> None:
    await output_of(web, "add", *NIGHTLY, "--runs-on", "illumos", "--priority", "low")
    changed = await answer_of(
        web, "edit", "nightly", "--cron", "@weekly", "--runs-on", "", "--missed", "skip"
    )
    assert (changed["cron"], changed["runs_on"], changed["missed"], changed["priority"]) == (
        "@weekly",
        None,
        "skip",
        "low",
    )
    nothing = await solstice(web, "edit", "nightly")
    assert nothing.exit_code != 0
    assert "name what is to be otherwise" in str(nothing.exception) + nothing.output


async def test_it_is_paused_resumed_and_removed(web: WebServer) -> None:
    await output_of(web, "add", *NIGHTLY)
    assert await output_of(web, "pause", "nightly") == "schedule nightly: paused\n"
    assert (await output_of(web, "resume", "nightly")).startswith("schedule nightly resumed: next tick 2")
    assert await output_of(web, "remove", "nightly") == "schedule nightly removed\n"
    assert await output_of(web, "list") == ""


async def test_a_folder_of_this_machine_is_a_repository(web: WebServer, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    added = await answer_of(
        web, "add", "local", "--repo-url", str(repository.path), "--branch", "main", "--cron", "@hourly"
    )
    assert added["repo_url"] == repository.path.as_uri()


async def test_mistakes_are_reported(web: WebServer) -> None:
    refused = await solstice(web, "add", *NIGHTLY[:-1], "* * 32 * *")
    assert refused.exit_code != 0
    assert "the 3rd field, day-of-month, is '32'" in str(refused.exception) + refused.output
    unknown = await solstice(web, "show", "nobody")
    assert "no schedule 'nobody'" in str(unknown.exception) + unknown.output
