"""Who may use the orchestrator's pages and API: real store, real server, real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError, ServiceRefused
from solstice_common.http.access import Access
from solstice_common.http.token_file import TokenFile, change
from solstice_common.http.tokens import Scope
from solstice_common.settings import ClientSettings
from solstice_orchestrator import daemon
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.web.access_control import READING
from solstice_orchestrator.web.app import create_app
from tests.servers.orchestrator_web import Stage, stage
from tests.servers.tokens import bearer, make_token

FAR_AWAY = ("203.0.113.7", 40000)
OPEN_PATHS = ["/healthz", "/readyz", "/metrics", "/openapi.json", "/static/app.js"]


@dataclass(frozen=True, kw_only=True)
class Place:
    line: Stage
    http: httpx2.AsyncClient
    tokens: Path

    def token(self, name: str, *scopes: Scope) -> str:
        return make_token(self.tokens, name, *scopes)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with (
        stage(tmp_path) as line,
        httpx2.AsyncClient(base_url=line.url, timeout=30, trust_env=False) as http,
    ):
        yield Place(line=line, http=http, tokens=tmp_path / "tokens.json")


def application(line: Stage, access: Access) -> Starlette:
    return create_app(
        store=line.store,
        broker_health=lambda: line.broker,
        metrics=line.metrics,
        version="1.2.3",
        access=access,
        streams=line.streams,
    )


def requests_of(app: Starlette) -> list[tuple[str, str]]:
    """Every method and path that there is, with an id in the place of each name."""

    def walk(routes: Any, prefix: str = "") -> list[tuple[str, str]]:
        found = []
        for route in routes:
            if inner := getattr(route, "routes", None):
                found += walk(inner, prefix + route.path)
            elif methods := getattr(route, "methods", None):
                path = (prefix + route.path).replace("{order}", "pause").replace("{action}", "pause")
                path = path.replace("{schedule}", "x")
                named = path.replace("{run_id}", "x").replace("{job_id}", "x").replace("{request_id}", "x")
                found += [(method, named.replace("{worker_id}", "x")) for method in sorted(methods)]
        return found

    return walk(app.routes)


def is_for_everybody(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/static/")


async def test_without_tokens_this_machine_may_do_everything(place: Place) -> None:
    run = await place.line.admit()
    assert (await place.http.get("/")).status_code == 200
    assert (await place.http.post(f"/api/v1/runs/{run.run_id}/rerun")).status_code == 201


async def test_without_tokens_nobody_else_may_do_anything(place: Place) -> None:
    app = application(place.line, Access(file=TokenFile(place.tokens)))
    transport = httpx2.ASGITransport(app=app, client=FAR_AWAY)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as afar:
        closed = [request for request in requests_of(app) if not is_for_everybody(request[1])]
        assert len(closed) > 30
        answers = [await afar.request(method, path) for method, path in closed]
        assert {answer.status_code for answer in answers} == {401}
        assert (await afar.get("/healthz")).status_code == 200


async def test_with_tokens_every_route_asks_for_the_right_scope_and_no_other(place: Place) -> None:
    tokens = {scope: place.token(scope, scope) for scope in Scope}
    app = application(place.line, Access(file=TokenFile(place.tokens)))
    for method, path in requests_of(app):
        if is_for_everybody(path):
            continue
        right = Scope.READ if method in READING else Scope.OPERATE
        nobody = await place.http.request(method, path)
        assert (nobody.status_code, method, path) == (401, method, path)
        for scope, token in tokens.items():
            if scope is not right:
                refused = await place.http.request(method, path, headers=bearer(token))
                assert (refused.status_code, scope, method, path) == (403, scope, method, path)
            elif "events" not in path:
                taken = await place.http.request(method, path, headers=bearer(token))
                assert taken.status_code not in {401, 403}, (scope, method, path)


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_what_watches_us_needs_no_token(place: Place, path: str) -> None:
    place.token("reader", Scope.READ)
    assert (await place.http.get(path)).status_code == 200


async def test_a_program_is_told_what_it_lacks(place: Place) -> None:
    reader = place.token("reader", Scope.READ)
    run = await place.line.admit()
    nobody = await place.http.get("/api/v1/runs")
    assert nobody.status_code == 401
    assert nobody.headers["WWW-Authenticate"] == 'Bearer realm="solstice"'
    assert nobody.json()["error"]["code"] == "token_needed"
    refused = await place.http.post(f"/api/v1/runs/{run.run_id}/cancel", headers=bearer(reader))
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "missing_scope"
    assert "'operate'" in refused.json()["error"]["message"]
    unchanged = await place.line.store.run(run.run_id)
    assert unchanged is not None
    assert unchanged.state is run.state


async def test_a_browser_is_asked_for_a_login_whose_password_is_the_token(place: Place) -> None:
    reader = place.token("reader", Scope.READ)
    asked = await place.http.get("/")
    assert asked.status_code == 401
    assert asked.headers["WWW-Authenticate"] == 'Basic realm="solstice", charset="UTF-8"'
    assert asked.headers["X-Frame-Options"] == "DENY"
    assert (await place.http.get("/", auth=("anybody", reader))).status_code == 200
    assert (await place.http.get("/", auth=(reader, "anything"))).status_code == 401


async def test_a_login_does_not_open_the_door_to_other_sites(place: Place) -> None:
    operator = place.token("operator", Scope.OPERATE)
    run = await place.line.admit()
    answer = await place.http.post(
        f"/runs/{run.run_id}/rerun", auth=("me", operator), headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert len((await place.line.store.runs(limit=10)).runs) == 1


async def test_tokens_come_and_go_while_it_serves(place: Place) -> None:
    assert (await place.http.get("/api/v1/runs")).status_code == 200
    reader = place.token("reader", Scope.READ)
    assert (await place.http.get("/api/v1/runs")).status_code == 401
    assert (await place.http.get("/api/v1/runs", headers=bearer(reader))).status_code == 200
    change(place.tokens, lambda _: [])
    assert (await place.http.get("/api/v1/runs", headers=bearer(reader))).status_code == 401


async def test_the_client_sends_the_token_of_its_settings(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOLSTICE_URL", place.line.url)
    monkeypatch.setenv("SOLSTICE_TOKEN", place.token("reader", Scope.READ))
    run = await place.line.admit()
    async with OrchestratorClient.of(load_settings(ClientSettings)) as api:
        assert (await api.run(run.run_id))["run_id"] == run.run_id
        with pytest.raises(ServiceRefused, match="lacks the scope 'operate'"):
            await api.cancel_run(run.run_id)
    monkeypatch.delenv("SOLSTICE_TOKEN")
    async with OrchestratorClient.of(load_settings(ClientSettings)) as api:
        with pytest.raises(ServiceRefused, match="set SOLSTICE_TOKEN"):
            await api.runs()


async def test_it_does_not_start_where_strangers_are_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = OrchestratorSettings(
        orchestrator_host="192.0.2.1",
        orchestrator_port=0,
        solstice_tokens=tmp_path / "tokens.json",
        database_url=f"sqlite:///{tmp_path / 'store.db'}",
        amqp_url=f"sqlite:///{tmp_path / 'broker.db'}",
        workspaces=tmp_path / "workspaces",
    )
    with pytest.raises(
        ConfigurationError, match=r"ORCHESTRATOR_HOST is '192\.0\.2\.1'.*solstice token create"
    ):
        await daemon.run(settings, asyncio.Event())
    # With one it tries: nothing here has that address.
    make_token(settings.solstice_tokens, "reader", Scope.READ)
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        await daemon.run(settings, asyncio.Event())
