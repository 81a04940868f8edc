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
from solstice_common.http.tokens import TokenScope
from solstice_common.settings import ClientSettings
from solstice_orchestrator import daemon
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.web.access_control import READING
from solstice_orchestrator.web.app import create_app
from tests.servers.orchestrator_web import WebServer, serve_web
from tests.servers.tokens import bearer, make_token

FAR_AWAY = ("203.0.113.7", 40000)
OPEN_PATHS = ["/healthz", "/readyz", "/metrics", "/openapi.json", "/static/app.js"]


@dataclass(frozen=True, kw_only=True)
class AccessSetup:
    web: WebServer
    http: httpx2.AsyncClient
    tokens: Path

    def token(self, name: str, *scopes: TokenScope) -> str:
        return make_token(self.tokens, name, *scopes)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[AccessSetup]:
    async with (
        serve_web(tmp_path) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=30, trust_env=False) as http,
    ):
        yield AccessSetup(web=web, http=http, tokens=tmp_path / "tokens.json")


def application(web: WebServer, access: Access) -> Starlette:
    return create_app(
        store=web.store,
        broker_health=lambda: web.broker,
        metrics=web.metrics,
        version="1.2.3",
        access=access,
        streams=web.streams,
    )


def requests_of(app: Starlette) -> list[tuple[str, str]]:
    """Every method and path of the API, with an example id for each parameter."""

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


def is_public(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/static/")


async def test_without_tokens_this_machine_may_do_everything(setup: AccessSetup) -> None:
    run = await setup.web.admit()
    assert (await setup.http.get("/")).status_code == 200
    assert (await setup.http.post(f"/api/v1/runs/{run.run_id}/rerun")).status_code == 201


async def test_without_tokens_callers_elsewhere_may_do_nothing(setup: AccessSetup) -> None:
    app = application(setup.web, Access(file=TokenFile(setup.tokens)))
    transport = httpx2.ASGITransport(app=app, client=FAR_AWAY)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as afar:
        closed = [request for request in requests_of(app) if not is_public(request[1])]
        assert len(closed) > 30
        answers = [await afar.request(method, path) for method, path in closed]
        assert {answer.status_code for answer in answers} == {401}
        assert (await afar.get("/healthz")).status_code == 200


async def test_with_tokens_every_route_asks_for_the_right_scope_and_no_other(setup: AccessSetup) -> None:
    tokens = {scope: setup.token(scope, scope) for scope in TokenScope}
    app = application(setup.web, Access(file=TokenFile(setup.tokens)))
    for method, path in requests_of(app):
        if is_public(path):
            continue
        right = TokenScope.READ if method in READING else TokenScope.OPERATE
        without_token = await setup.http.request(method, path)
        assert (without_token.status_code, method, path) == (401, method, path)
        for scope, token in tokens.items():
            if scope is not right:
                refused = await setup.http.request(method, path, headers=bearer(token))
                assert (refused.status_code, scope, method, path) == (403, scope, method, path)
            elif "events" not in path:
                permitted = await setup.http.request(method, path, headers=bearer(token))
                assert permitted.status_code not in {401, 403}, (scope, method, path)


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_what_watches_us_needs_no_token(setup: AccessSetup, path: str) -> None:
    setup.token("reader", TokenScope.READ)
    assert (await setup.http.get(path)).status_code == 200


async def test_a_program_learns_what_it_lacks(setup: AccessSetup) -> None:
    reader = setup.token("reader", TokenScope.READ)
    run = await setup.web.admit()
    without_token = await setup.http.get("/api/v1/runs")
    assert without_token.status_code == 401
    assert without_token.headers["WWW-Authenticate"] == 'Bearer realm="solstice"'
    assert without_token.json()["error"]["code"] == "token_needed"
    refused = await setup.http.post(f"/api/v1/runs/{run.run_id}/cancel", headers=bearer(reader))
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "missing_scope"
    assert "'operate'" in refused.json()["error"]["message"]
    unchanged = await setup.web.store.run(run.run_id)
    assert unchanged is not None
    assert unchanged.state is run.state


async def test_a_browser_is_asked_for_a_login_whose_password_is_the_token(setup: AccessSetup) -> None:
    reader = setup.token("reader", TokenScope.READ)
    challenged = await setup.http.get("/")
    assert challenged.status_code == 401
    assert challenged.headers["WWW-Authenticate"] == 'Basic realm="solstice", charset="UTF-8"'
    assert challenged.headers["X-Frame-Options"] == "DENY"
    assert (await setup.http.get("/", auth=("anybody", reader))).status_code == 200
    assert (await setup.http.get("/", auth=(reader, "anything"))).status_code == 401


async def test_a_login_does_not_open_the_door_to_other_sites(setup: AccessSetup) -> None:
    operator = setup.token("operator", TokenScope.OPERATE)
    run = await setup.web.admit()
    answer = await setup.http.post(
        f"/runs/{run.run_id}/rerun", auth=("me", operator), headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert len((await setup.web.store.runs(limit=10)).runs) == 1


async def test_tokens_come_and_go_while_it_serves(setup: AccessSetup) -> None:
    assert (await setup.http.get("/api/v1/runs")).status_code == 200
    reader = setup.token("reader", TokenScope.READ)
    assert (await setup.http.get("/api/v1/runs")).status_code == 401
    assert (await setup.http.get("/api/v1/runs", headers=bearer(reader))).status_code == 200
    change(setup.tokens, lambda _: [])
    assert (await setup.http.get("/api/v1/runs", headers=bearer(reader))).status_code == 401


async def test_the_client_sends_the_token_of_its_settings(
    setup: AccessSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOLSTICE_URL", setup.web.url)
    monkeypatch.setenv("SOLSTICE_TOKEN", setup.token("reader", TokenScope.READ))
    run = await setup.web.admit()
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
    # With one it connects: no server here has that address.
    make_token(settings.solstice_tokens, "reader", TokenScope.READ)
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        await daemon.run(settings, asyncio.Event())
