"""The pages of deliveries over HTTP: access, contents, and strangers' text shown as text."""

import re
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette

from solstice_common.http.access import access_rules
from solstice_common.http.tokens import TokenScope
from solstice_forge.inbox import open_inbox
from solstice_forge.pages.delivery_pages import DeliveryPages
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.protocol import ContextStatus, ReportPhase
from tests.inboxes import NOON, delivery
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import push
from tests.servers.tokens import bearer, make_token

BASE = "https://ci.example"


@pytest.fixture
def settings(make_settings: MakeSettings) -> ForgeSettings:
    return make_settings(public_url=BASE)


@pytest.fixture
async def client(settings: ForgeSettings, running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with running(settings) as opened:
        yield opened


def text_of(page: httpx2.Response) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.text).split())


async def test_push_is_listed_and_leads_to_its_run(client: httpx2.AsyncClient) -> None:
    body, headers = push(1)
    stored = (await client.post("/webhooks/forgejo", content=body, headers=headers)).json()
    await client.post("/webhooks/forgejo", content=body, headers=headers)
    listed = await client.get("/deliveries")
    assert listed.status_code == 200
    assert re.findall(r'class="pill \w+">(\w+)<', listed.text) == ["Duplicate", "Accepted"]
    number = re.findall(r'id="delivery-(\d+)"', listed.text)[1]
    shown = await client.get(f"/deliveries/{number}")
    (request_id,) = stored["request_ids"]
    assert f'href="{BASE}/requests/{request_id}"' in shown.text
    assert "A push: its newest commit is built." in text_of(shown)
    assert "The forge sent this delivery before" in text_of(shown)
    assert "delivery-1" in text_of(shown)


async def test_list_is_filtered_and_paged(settings: ForgeSettings, running: Running) -> None:
    async with open_inbox(settings.forge_inbox_url) as inbox:
        for number in range(60):
            await inbox.keep(delivery(f"d-{number}"))
        await inbox.keep(delivery("ping", asks=False, repository=None))
    async with running(settings) as client:
        first = await client.get("/deliveries")
        (older,) = re.findall(r'href="(/deliveries\?[^"]*before=[^"]*)"', first.text)
        second = await client.get(older.replace("&amp;", "&"))
        assert len(re.findall(r'id="delivery-', first.text + second.text)) == 61
        ignored = await client.get("/deliveries?decision=ignored")
        assert re.findall(r'class="pill \w+">(\w+)<', ignored.text) == ["Ignored"]
        assert "No delivery matches" in (await client.get("/deliveries?repository=no/such")).text
        # Invalid decisions and numbers are ignored.
        for wrong, words in (
            ("decision=maybe", "&#39;maybe&#39; is no decision"),
            ("before=x", "&#39;x&#39; is no number of a delivery"),
            (
                "label=linux",
                "&#39;label&#39; is not known here; known are source, repository, decision, reason, before",
            ),
        ):
            refused = await client.get(f"/deliveries?{wrong}")
            assert refused.status_code == 400
            assert words in refused.text
        assert (await client.get("/deliveries?label=&decision=")).status_code == 200


@pytest.mark.parametrize("path", ["/deliveries/4711", "/deliveries/x", "/deliveries/" + "9" * 40])
async def test_delivery_that_is_not_there_is_a_page_that_says_so(
    client: httpx2.AsyncClient, path: str
) -> None:
    page = await client.get(path)
    assert page.status_code == 404
    assert "There is no delivery of this number" in page.text


async def test_what_strangers_wrote_is_only_text(settings: ForgeSettings, running: Running) -> None:
    alarm = "<script>alert(1)</script>"
    async with open_inbox(settings.forge_inbox_url) as inbox:
        await inbox.keep(delivery("d-1", repository=alarm, body=f'{{"a":"{alarm}"}}'.encode()))
    async with running(settings) as client:
        for path in ("/deliveries", "/deliveries/1"):
            page = await client.get(path)
            assert "<script" not in page.text
            assert "&lt;script&gt;" in page.text
            policy = page.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "script-src" not in policy
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-frame-options"] == "DENY"


async def test_pages_are_for_this_machine_and_for_who_has_a_token(
    settings: ForgeSettings, running: Running
) -> None:
    async with running(settings) as client:
        assert (await client.get("/deliveries")).status_code == 200
        for strange in ({"host": "rebound.example"}, {"x-forwarded-for": "192.0.2.1"}):
            refused = await client.get("/deliveries", headers=strange)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert "no-store" in refused.headers["cache-control"]
        assert (await client.get("/static/style.css")).status_code == 200
    reader = make_token(settings.solstice_tokens, "reader", TokenScope.READ)
    builder = make_token(settings.solstice_tokens, "builder", TokenScope.ENQUEUE)
    async with running(settings) as client:
        assert (await client.get("/deliveries")).status_code == 401
        assert (await client.get("/deliveries", headers=bearer(reader))).status_code == 200
        # As a browser does, after it asked for a login.
        assert (await client.get("/deliveries/1", auth=("mira", reader))).status_code == 404
        assert (await client.get("/deliveries", headers=bearer(builder))).status_code == 403


async def test_home_leads_to_the_deliveries(client: httpx2.AsyncClient) -> None:
    home = await client.get("/")
    assert (home.status_code, home.headers["location"]) == (303, "/deliveries")


async def test_reported_statuses_are_shown(settings: ForgeSettings) -> None:
    def shown(context: str, phase: ReportPhase, answered: str, failure: str = "") -> ContextStatus:
        return ContextStatus(
            source_name="forgejo",
            repository="harbour/lighthouse",
            commit_sha="1" * 40,
            context=context,
            run_id="r",
            state="success",
            phase=phase,
            reported_state=answered,
            reported_at=NOON if answered else None,
            failures=0,
            last_failure=failure,
            next_at=NOON,
        )

    async def statuses(_: str) -> list[ContextStatus]:
        return [
            shown("solstice/build", ReportPhase.REPORTED, "success"),
            shown("solstice/test", ReportPhase.PENDING, "pending"),
            shown("solstice/docs", ReportPhase.DEAD, "", "404: no such repository"),
        ]

    async with open_inbox(settings.forge_inbox_url) as inbox:
        await inbox.keep(delivery("d-1"))
        pages = DeliveryPages(
            inbox, access_rules(settings), sources=["forgejo"], version="1", statuses=statuses
        )
        transport = httpx2.ASGITransport(app=Starlette(routes=pages.routes()), client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            page_text = text_of(await client.get("/deliveries/1"))
    assert "solstice/build : the forge shows success" in page_text
    assert "solstice/test : success is to be reported; the forge shows pending" in page_text
    assert "solstice/docs : the forge does not take success (404: no such repository)" in page_text
