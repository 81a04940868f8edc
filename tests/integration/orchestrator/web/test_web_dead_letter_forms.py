"""The forms of the dead-letter pages, also with an unavailable broker."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from solstice_orchestrator.web import dead_letter_access
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.form_tokens import COOKIE
from tests.integration.orchestrator.web.test_web_dead_letters import ROUTE, dead
from tests.servers.orchestrator_web import serve_web
from tests.servers.tokens import bearer, make_token
from tests.traffic import wait_for_ready

PAGES = ("/dead-letters", "/dead-letters/list", "/dead-letters/replay", "/dead-letters/drop")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_broker(f"sqlite:///{tmp_path / 'broker.db'}", name="test") as opened:
        await opened.declare(full_topology(BrokerSettings()))
        await opened.publish([dead("internal_error"), dead("not_json")])
        yield opened


@pytest.fixture
async def http(tmp_path: Path, broker: Broker) -> AsyncIterator[httpx2.AsyncClient]:
    settings = BrokerSettings(amqp_url=f"sqlite:///{tmp_path / 'broker.db'}")
    async with (
        serve_web(tmp_path, dead_letters=DeadLetterAccess(broker=broker, settings=settings)) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client,
    ):
        yield client


async def form(http: httpx2.AsyncClient, handling: str = "drop", **more: object) -> dict[str, str]:
    """The fields of the question; the client keeps its cookie."""
    page = await http.get(f"/dead-letters/{handling}", **more)  # type: ignore[arg-type]  # headers
    assert page.status_code == 200
    return dict(re.findall(r'name="(form_token|queue|ids)" value="([^"]*)"', page.text))


async def test_a_question_changes_nothing_and_its_form_does_it(
    http: httpx2.AsyncClient, broker: Broker
) -> None:
    fields = await form(http)
    for path in PAGES:
        assert (await http.get(path)).status_code == 200
        assert (await http.head(path)).status_code == 200
    assert (await http.get("/dead-letters/drop", params=fields)).status_code == 200
    await wait_for_ready(broker, ROUTE.dlq, 2)
    done = await http.post("/dead-letters/drop", data=fields)
    assert (done.status_code, "2 of 2 dropped." in done.text) == (200, True)
    await wait_for_ready(broker, ROUTE.dlq, 0)


@pytest.mark.parametrize("handling", ["replay", "drop"])
async def test_a_forged_form_is_refused(http: httpx2.AsyncClient, broker: Broker, handling: str) -> None:
    fields = await form(http, handling)
    where = f"/dead-letters/{handling}"
    without = {name: value for name, value in fields.items() if name != "form_token"}
    refused = [
        await http.post(where, data=fields, headers={"Origin": "https://evil.example"}),
        await http.post(where, data=fields, headers={"Origin": "null"}),
        await http.post(where, data=fields, headers={"Sec-Fetch-Site": "cross-site"}),
        await http.post(where, data=fields, headers={"Sec-Fetch-Site": "same-site"}),
        await http.post(where, data=without),
        await http.post(where, data=fields | {"form_token": ""}),
        await http.post(where, data=fields | {"form_token": "x" * 43}),
        await http.post(where, data=fields | {"form_token": "ü"}),
        await http.post(where, params=fields),
    ]
    http.cookies.clear()
    refused.append(await http.post(where, data=fields))
    # A page that can write a cookie, but does not know a token, cannot invent one.
    http.cookies.set(COOKIE, "short", path="/dead-letters")
    refused.append(await http.post(where, data=fields | {"form_token": "short"}))
    assert [each.status_code for each in refused] == [403] * 11
    await wait_for_ready(broker, ROUTE.dlq, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": ""},
        {"ids": "abcd"},
        {"ids": "0" * 16 + " x"},
        {"queue": "nothing"},
        {"ids": "0123456789abcdef " * 10_001},
    ],
    ids=["none", "a beginning", "no id", "unknown queue", "too many"],
)
async def test_a_wrong_form_is_refused(
    http: httpx2.AsyncClient, broker: Broker, changes: dict[str, str]
) -> None:
    fields = await form(http)
    assert (await http.post("/dead-letters/drop", data=fields | changes)).status_code == 400
    assert (await http.post("/dead-letters/drop", content=b"ids=%ff&" * 9)).status_code in {400, 403}
    assert (await http.post("/dead-letters/drop", content=b"x" * 600_000)).status_code == 413
    await wait_for_ready(broker, ROUTE.dlq, 2)


@pytest.mark.parametrize(
    "path", ["/dead-letters/list?since=long", "/dead-letters/list?queue=x", "/dead-letters/drop?priority=x"]
)
async def test_a_wrong_filter_is_refused(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 400


async def test_without_the_scope_nothing_is_done_and_a_revoked_token_ends_it(
    http: httpx2.AsyncClient, broker: Broker, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    reader = bearer(make_token(tokens, "reader", TokenScope.READ))
    builder = bearer(make_token(tokens, "builder", TokenScope.READ, TokenScope.ENQUEUE))
    operator = bearer(make_token(tokens, "operator", TokenScope.READ, TokenScope.OPERATE))
    fields = await form(http, headers=operator)
    for headers, seen, changed in [({}, 401, 401), (reader, 200, 403), (builder, 200, 403)]:
        page = await http.get("/dead-letters", headers=headers)
        assert (page.status_code, "/dead-letters/drop" in page.text) == (seen, False)
        assert (await http.get("/dead-letters/drop", headers=headers)).status_code == changed
        assert (await http.post("/dead-letters/drop", data=fields, headers=headers)).status_code == changed
    change(tokens, lambda known: [each for each in known if each.name != "operator"])
    assert (await http.post("/dead-letters/drop", data=fields, headers=operator)).status_code == 401
    await wait_for_ready(broker, ROUTE.dlq, 2)


async def test_replays_of_the_same_message_at_once_have_one_effect(
    http: httpx2.AsyncClient, broker: Broker
) -> None:
    fields = await form(http, "replay")
    answers = await asyncio.gather(*(http.post("/dead-letters/replay", data=fields) for _ in range(4)))
    assert sorted("2 of 2 replayed." in each.text for each in answers) == [False, False, False, True]
    assert sum("2 were not there any more" in each.text for each in answers) == 3
    await wait_for_ready(broker, ROUTE.queue, 2)
    await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_looks_at_once_see_everything(http: httpx2.AsyncClient) -> None:
    pages = await asyncio.gather(*(http.get("/dead-letters/list") for _ in range(8)))
    assert ["2 dead letters" in each.text for each in pages] == [True] * 8


async def test_a_silent_broker_is_named_soon(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def never(_url: str, **_named: str) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(dead_letter_access, "open_dead_letter_queues", never)
    monkeypatch.setattr(dead_letter_access, "CONNECT_SECONDS", 0.2)
    for path in PAGES:
        page = await http.get(path)
        assert (page.status_code, "no connection within" in page.text) == (503, True)


@pytest.mark.parametrize("path", PAGES)
async def test_a_broker_that_is_away_is_named(tmp_path: Path, broker: Broker, path: str) -> None:
    away = DeadLetterAccess(
        broker=broker, settings=BrokerSettings(amqp_url="amqp://guest:secret@127.0.0.1:9/%2f")
    )
    async with (
        serve_web(tmp_path, dead_letters=away) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client,
    ):
        page = await client.get(path)
    assert (page.status_code, "127.0.0.1:9" in page.text, "secret" in page.text) == (503, True, False)
