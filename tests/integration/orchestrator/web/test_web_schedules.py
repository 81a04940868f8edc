"""Schedules over HTTP: real store, real server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson
import pytest

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ServiceRefused
from solstice_common.http.tokens import TokenScope
from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.web.api.schedules import MAX_BYTES
from tests.schedules import COMMIT, added_schedule, claimed_tick
from tests.servers.orchestrator_web import WebServer, serve_web
from tests.servers.tokens import bearer, make_token

SCHEDULE_INPUT: Final = {
    "name": "nightly",
    "repo_url": "https://forge.example/harbour/lighthouse.git",
    "branch": "main",
    "cron": "30 2 * * MON-FRI",
    "timezone": "Europe/Berlin",
}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as served:
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"{web.url}/api/v1", timeout=20, trust_env=False) as client:
        yield client


async def added(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/schedules", json={**SCHEDULE_INPUT, **fields})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_schedule_is_shown_as_it_was_asked_for(http: httpx2.AsyncClient) -> None:
    schedule = await added(http, priority="low", runs_on="illumos", missed="skip", overlap="skip")
    assert (
        schedule.items()
        >= {**SCHEDULE_INPUT, "priority": "low", "runs_on": "illumos", "missed": "skip"}.items()
    )
    assert (schedule["paused"], schedule["last"], schedule["created_by"]) == (False, None, None)
    assert schedule["next_at"].endswith(":30:00.000Z")
    for which in ("nightly", schedule["schedule_id"]):
        assert (await http.get(f"/schedules/{which}")).json() == {**schedule, "ticks": []}


async def test_it_says_who_asked_for_it(web: WebServer, http: httpx2.AsyncClient, tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.json", "mira", TokenScope.OPERATE)
    answer = await http.post("/schedules", json=SCHEDULE_INPUT, headers=bearer(token))
    assert (answer.status_code, answer.json()["created_by"]) == (201, "mira")
    await web.store.schedule_store.fire("nightly")
    await web.store.schedule_store.fired(await claimed_tick(web.store.schedule_store), COMMIT)
    (run,) = (await web.store.runs(limit=9)).runs
    assert run.sender == "mira"


async def test_ticks_are_shown_with_their_runs(web: WebServer, http: httpx2.AsyncClient) -> None:
    await added(http)
    schedule_store = web.store.schedule_store
    await schedule_store.fire("nightly")
    await schedule_store.not_fired(
        await claimed_tick(schedule_store), TickReason.BRANCH_GONE, "no such branch", retry=False
    )
    assert (await http.post("/schedules/nightly/fire")).status_code == 202
    settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
    assert settled is not None
    shown = (await http.get("/schedules/nightly")).json()
    newest, oldest = shown["ticks"]
    assert shown["last"] == newest
    assert (newest["run_id"], newest["run_state"], newest["commit_sha"]) == (
        settled.run_id,
        "planning",
        COMMIT,
    )
    assert (oldest["state"], oldest["reason"], oldest["detail"]) == (
        "failed",
        "branch_gone",
        "no such branch",
    )


async def test_the_next_ticks_are_reported_in_both_times(http: httpx2.AsyncClient) -> None:
    await added(http)
    await http.post("/schedules/nightly/pause")
    found = (await http.get("/schedules/nightly/next", params={"count": 3})).json()
    assert (found["timezone"], len(found["ticks"])) == ("Europe/Berlin", 3)
    for tick in found["ticks"]:
        assert "T02:30:00+0" in tick["local"] or "T03:00:00+02" in tick["local"]
        assert tick["at"] < "9"
    assert len((await http.get("/schedules/nightly/next")).json()["ticks"]) == 10


async def test_pages_of_a_list_lead_on(http: httpx2.AsyncClient) -> None:
    for number in range(5):
        await added(http, name=f"s{number}", branch="fog" if number % 2 else "main")
    names: list[str] = []
    after = None
    while True:
        page = (
            await http.get("/schedules", params={"limit": 2, **({"after": after} if after else {})})
        ).json()
        names += [each["name"] for each in page["schedules"]]
        if (after := page["next"]) is None:
            break
    assert names == [f"s{number}" for number in range(5)]
    fog = (await http.get("/schedules", params={"branch": "fog", "limit": 1})).json()
    assert [each["name"] for each in fog["schedules"]] == ["s1"]
    other = await http.get("/schedules", params={"after": fog["next"]})
    assert (other.status_code, other.json()["error"]["code"]) == (400, "invalid_cursor")
    assert (await http.get("/schedules", params={"repository": "nobody/nothing"})).json()["schedules"] == []


async def test_what_is_sent_is_changed_and_nothing_else(http: httpx2.AsyncClient) -> None:
    before = await added(http, runs_on="illumos", priority="high")
    changed = (await http.post("/schedules/nightly", json={"branch": "next", "runs_on": None})).json()
    assert changed == {**before, "branch": "next", "runs_on": None, "changed_at": changed["changed_at"]}
    renamed = await http.post("/schedules/nightly", json={"name": "later"})
    assert renamed.json()["name"] == "later"
    assert (await http.get("/schedules/nightly")).status_code == 404


async def test_a_repository_has_the_name_that_a_webhook_gives_it(http: httpx2.AsyncClient) -> None:
    assert (await added(http))["repo_full_name"] == "harbour/lighthouse"
    moved = {"repo_url": "https://forge.example/quay/crane.git"}
    assert (await http.post("/schedules/nightly", json=moved)).json()["repo_full_name"] == "quay/crane"
    reported = {"repo_url": "https://forge.example/7", "repo_full_name": "quay/winch"}
    assert (await http.post("/schedules/nightly", json=reported)).json()["repo_full_name"] == "quay/winch"
    assert (await http.post("/schedules/nightly", json={"branch": "next"})).json()[
        "repo_full_name"
    ] == "quay/winch"


async def test_it_is_paused_resumed_and_removed(http: httpx2.AsyncClient) -> None:
    await added(http)
    paused = (await http.post("/schedules/nightly/pause")).json()
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert (await http.post("/schedules/nightly/resume")).json()["next_at"] is not None
    assert (await http.post("/schedules/nightly/remove")).json()["name"] == "nightly"
    for action in ("pause", "resume", "fire", "remove"):
        assert (await http.post(f"/schedules/nightly/{action}")).status_code == 404
    assert (await http.post("/schedules/nightly/promote")).json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"cron": "61 * * * *"}, "cron: the 1st field, minute, is '61'"),
        ({"cron": "* * * * * *"}, "cron: '* * * * * *' has 6 fields"),
        ({"cron": "0 0 30 2 *"}, "never comes"),
        ({"timezone": "Berlin"}, "timezone: there is no time zone 'Berlin'"),
        ({"branch": "fog of war"}, "branch: must be the name of a branch"),
        ({"branch": "../main"}, "branch: must be the name of a branch"),
        ({"name": "events"}, "name: must not be 'events'"),
        ({"name": "a/b"}, "name:"),
        ({"name": "0190a5b2-0000-7000-8000-000000000000"}, "nor look like an id"),
        ({"repo_url": "https://me:secret@forge.example/x"}, "repo_url: must not hold credentials"),
        ({"missed": "twice"}, "missed:"),
        ({"commit_sha": COMMIT}, "commit_sha:"),
        ({"cron": None}, "cron:"),
    ],
)
async def test_mistakes_are_reported(http: httpx2.AsyncClient, fields: dict[str, Any], wrong: str) -> None:
    refused = await http.post("/schedules", json={**SCHEDULE_INPUT, **fields})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "malformed")
    assert wrong in refused.json()["error"]["message"]
    await added(http)
    refused = await http.post("/schedules/nightly", json=fields)
    assert refused.status_code == 400
    assert wrong in refused.json()["error"]["message"]
    assert "secret" not in refused.text


async def test_a_name_is_there_once(http: httpx2.AsyncClient) -> None:
    await added(http)
    await added(http, name="weekly")
    for path, body in (("/schedules", SCHEDULE_INPUT), ("/schedules/weekly", {"name": "nightly"})):
        refused = await http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_taken")


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        pytest.param(
            orjson.dumps(SCHEDULE_INPUT), "text/plain", 415, "unsupported_content_type", id="no-json"
        ),
        pytest.param(b"{", "application/json", 400, "malformed", id="half"),
        pytest.param(b"[]", "application/json", 400, "malformed", id="list"),
        pytest.param(b" " * (MAX_BYTES + 1), "application/json", 413, "too_large", id="large"),
    ],
)
async def test_what_is_no_schedule_is_refused(
    http: httpx2.AsyncClient, body: bytes, kind: str, status: int, code: str
) -> None:
    refused = await http.post("/schedules", content=body, headers={"content-type": kind})
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


async def test_a_form_of_another_site_adds_nothing(web: WebServer, http: httpx2.AsyncClient) -> None:
    refused = await http.post("/schedules", json=SCHEDULE_INPUT, headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert await web.store.schedule_store.schedules(limit=9) == []


async def test_the_client_asks_for_all_of_it(web: WebServer) -> None:
    async with OrchestratorClient.open(web.url) as api:
        await api.add_schedule({**SCHEDULE_INPUT})
        assert (await api.edit_schedule("nightly", {"cron": "@daily"}))["cron"] == "@daily"
        assert (await api.steer_schedule("nightly", "pause"))["paused"] is True
        assert len((await api.next_ticks("nightly", count=2))["ticks"]) == 2
        (listed,) = (await api.schedules(repository=SCHEDULE_INPUT["repo_url"], branch="main"))["schedules"]
        assert (await api.schedule("nightly")).items() >= listed.items()
        with pytest.raises(ServiceRefused, match="no schedule 'nobody'"):
            await api.schedule("nobody")


async def test_changes_are_reported(web: WebServer) -> None:
    async with OrchestratorClient.open(web.url) as api:
        events = api._events("/api/v1/schedules/events", {})
        reported = asyncio.ensure_future(anext(events))
        while not reported.done():
            await added_schedule(
                web.store.schedule_store, name=f"s{len(await web.store.schedule_store.schedules(limit=200))}"
            )
            await asyncio.wait([reported], timeout=0.3)
        assert (await reported).name == "changed"
        await events.aclose()
