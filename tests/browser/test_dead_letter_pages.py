"""The pages of dead letters in Chromium: over a real server and the embedded broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, ViewportSize, expect

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.broker.delivery import Refuse
from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, full_topology, jobs_route
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.pages import dead_letter_pages
from tests.browser.test_pages import ALARM, CLIPPED, CONTRASTS, WCAG, tab
from tests.builders import job_request
from tests.servers.orchestrator_web import WebServer, serve_web
from tests.servers.tokens import make_token
from tests.traffic import wait_for_ready

ROUTE = jobs_route(BrokerSettings())
PHONE: ViewportSize = {"width": 360, "height": 700}
WIDTHS_AND_SCHEMES: Final[Sequence[tuple[int, Literal["light", "dark"]]]] = (
    (1200, "light"),
    (360, "light"),
    (360, "dark"),
    (1200, "dark"),
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_broker(f"sqlite:///{tmp_path / 'broker.db'}", name="test") as opened:
        await opened.declare(full_topology(BrokerSettings()))
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def web(tmp_path: Path, broker: Broker) -> AsyncIterator[WebServer]:
    settings = BrokerSettings(amqp_url=f"sqlite:///{tmp_path / 'broker.db'}")
    async with serve_web(tmp_path, dead_letters=DeadLetterAccess(broker=broker, settings=settings)) as served:
        yield served


def dead(
    reason: str = "internal_error",
    *,
    number: int = 1,
    headers: dict[str, Any] | None = None,
    body: bytes | None = None,
    **fields: Any,
) -> Message:
    """A dead letter of the requests; a higher number died later."""
    request = job_request(request_id=f"00000000-0000-4000-8000-{number:012}", **fields)
    return Message(
        exchange=ROUTE.dlx,
        routing_key=ROUTE.routing_key,
        body=request.encode() if body is None else body,
        type="jobrequest.v1",
        correlation_id=request.request_id,
        headers={
            "x-solstice-reason": reason,
            "x-solstice-detail": f"why {number}",
            "x-solstice-refused-at": f"2026-03-01T12:{number // 60:02}:{number % 60:02}.000Z",
            **(headers or {}),
        },
        priority=4,
    )


async def confirmed(page: Page, button: str) -> None:
    """Press a button, and the button of the question that it leads to."""
    await page.get_by_role("button", name=button).first.click()
    await page.locator(".confirm button").click()


async def test_the_overview_leads_to_one_message_and_back(
    web: WebServer, broker: Broker, browser: Browser
) -> None:
    await broker.publish([dead("not_json", number=1), dead(number=2), dead(number=3, priority="high")])
    async with tab(browser, web, viewport={"width": 1200, "height": 800}) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Dead letters").click()
        requests = page.locator(".dead-queue").first
        await expect(requests.get_by_role("heading")).to_have_text("Requests 3")
        await expect(requests.locator(".reasons li")).to_have_count(2)
        await expect(requests.locator(".reasons li").first).to_contain_text("internal_error 2")
        await expect(requests.locator(".reasons li").first).to_contain_text("Upgrade the service")
        await expect(requests.locator(".facts")).to_contain_text("high 1")
        await expect(page.locator(".dead-queue").last).to_contain_text(f"None in {STATUSES.dlq}")
        await requests.get_by_role("link", name="not_json").click()
        await expect(page.locator(".dead")).to_have_count(1)
        await page.locator(".run-name").click()
        await expect(page.locator(".detail")).to_have_text("why 1")
        await expect(page.locator(".facts")).to_contain_text("lantern/harbour")
        await expect(page.locator(".message-body")).to_contain_text('"schema_version": "jobrequest.v1"')
        await page.get_by_role("link", name="Requests").click()
        await expect(page.locator(".dead")).to_have_count(3)


async def test_filters_and_pages_show_each_once(web: WebServer, broker: Broker, browser: Browser) -> None:
    await broker.publish([dead(number=each) for each in range(1, 121)])
    await broker.publish([dead("not_json", number=121, repo_full_name="quay/crane")])
    async with tab(browser, web) as page:
        await page.goto("/dead-letters/list?queue=requests")
        seen: list[str] = []
        for count in (50, 50, 21):
            await expect(page.locator(".dead")).to_have_count(count)
            seen += [str(await each.get_attribute("id")) for each in await page.locator(".run-name").all()]
            if count == 50:
                await page.get_by_role("link", name="More").click()
        assert len(set(seen)) == 121
        await page.get_by_label("Repository").fill("quay/*")
        await page.keyboard.press("Enter")
        await expect(page.locator(".dead")).to_have_count(1)
        await page.get_by_label("Reason").select_option("internal_error")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("heading", name="No dead letter matches")).to_be_visible()
        await page.get_by_role("link", name="Show all dead letters").click()
        await expect(page.locator(".dead")).to_have_count(50)
        await page.get_by_label("Died within").select_option("1h")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("heading", name="No dead letter matches")).to_be_visible()


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_what_a_filter_selects_is_replayed_or_dropped_after_a_question(
    web: WebServer, broker: Broker, browser: Browser, script: bool
) -> None:
    await broker.publish([dead(number=each) for each in range(1, 31)])
    await broker.publish(
        [dead("not_json", number=31), dead("agent_lost", number=32, headers={"x-solstice-run": "run-7"})]
    )
    async with tab(browser, web, java_script_enabled=script) as page:
        await page.goto("/dead-letters/list?queue=requests&reason=internal_error")
        await page.get_by_role("button", name="Replay these").click()
        await expect(page.get_by_role("heading", name="Replay 30 dead letters?")).to_be_visible()
        await expect(page.locator(".dead")).to_have_count(20)
        await wait_for_ready(broker, ROUTE.dlq, 32)  # the question has changed nothing
        await broker.publish([dead(number=40)])  # was not in the question
        await page.locator(".confirm button").click()
        await expect(page.locator(".result")).to_contain_text("30 of 30 replayed.")
        await wait_for_ready(broker, ROUTE.queue, 30)
        await wait_for_ready(broker, ROUTE.dlq, 3)
        await page.goto("/dead-letters")
        await page.get_by_role("button", name="Replay all").click()
        await expect(page.get_by_role("heading", name="Replay 2 dead letters?")).to_be_visible()
        await expect(page.locator(".kept")).to_contain_text("solstice rerun run-7")
        await page.get_by_role("link", name="Cancel").click()
        await expect(page.locator(".dead")).to_have_count(3)
        await confirmed(page, "Drop these")
        await expect(page.locator(".result")).to_contain_text("3 of 3 dropped.")
        await page.get_by_role("link", name="Show the dead letters").click()
        await expect(page.locator(".dead")).to_have_count(0)
        await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_what_comes_back_dead_is_named(web: WebServer, broker: Broker, browser: Browser) -> None:
    await broker.publish([dead()])

    async with broker.consume(ROUTE.queue, prefetch=1) as consumer:

        async def refuse_all() -> None:
            while True:
                again = Refuse(reason="not_json", detail="again")
                await consumer.settle([(delivery, again) for delivery in await consumer.batch()])

        refusing = asyncio.create_task(refuse_all())
        async with tab(browser, web) as page:
            await page.goto("/dead-letters")
            await confirmed(page, "Replay all")
            await expect(page.locator(".result")).to_contain_text("One came back dead as")
            await expect(page.locator(".result")).to_contain_text("not_json (again)")
            await page.locator(".result a").click()
            await expect(page.locator(".history li")).to_contain_text("asked by @local: internal_error")
        refusing.cancel()
        await asyncio.wait([refusing])


async def test_the_numbers_stay_fresh(web: WebServer, broker: Broker, browser: Browser) -> None:
    async with tab(browser, web) as page:
        await page.goto("/dead-letters")
        await expect(page.locator("#live")).to_have_text("Live")
        await broker.publish([dead()])
        await expect(page.locator("#queue-requests")).to_have_text("Requests 1")
        await page.goto("/dead-letters/list")
        await expect(page.locator("#live")).to_have_text("Live")
        await broker.publish([dead(number=2)])
        await expect(page.locator(".dead")).to_have_count(2)


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_what_strangers_write_is_only_text(
    web: WebServer, broker: Broker, browser: Browser, script: bool
) -> None:
    body = json.dumps(
        {"repo_full_name": f"{ALARM}\ud800", "password": "hunter2", "x": "</pre></main>" + ALARM}
    )
    headers = {
        "x-solstice-detail": f"\u202e{ALARM}\x1b[31m",
        "x-solstice-history": f"{ALARM}\n\"'><svg/onload=alert(1)>",
        "x-solstice-refused-by": ALARM,
        "x-solstice-run": "'\"><b onmouseover=alert(1)>",
        "x-<script>alert(1)</script>": "javascript:alert(1)",
        "x-secret-token": "hunter3",
        "x-url": "https://me:hunter4@forge.example/",
    }
    await broker.publish([dead(ALARM, headers=headers, body=body.encode()), dead("'\"`-->", number=2)])
    async with tab(browser, web, java_script_enabled=script) as page:
        for path in ("/dead-letters", "/dead-letters/list", "/dead-letters/drop"):
            await page.goto(path)
            await expect(page.locator("main")).to_contain_text("<script>window.hacked=1")
        await page.goto("/dead-letters/replay")
        await expect(page.locator(".kept")).to_contain_text("<b onmouseover=alert(1)>")
        await page.goto("/dead-letters/list")
        await page.locator(".run-name", has_text="onerror").click()
        await expect(page.locator(".message-body")).to_contain_text("</pre></main><script>window.hacked=1")
        await expect(page.locator(".detail")).to_contain_text("\\u202e<script>")
        text = await page.locator("main").text_content() or ""
        assert "hunter" not in text
        assert await page.locator("script:not([src='/static/app.js'])").count() == 0
        assert (
            await page.locator("svg:not(.icon), [onerror], [onclick], [onload], [onmouseover]").count() == 0
        )
        assert await page.locator("a[href^='javascript'], main img").count() == 0
        await confirmed(page, "Drop")
        await expect(page.locator(".result")).to_contain_text("1 of 1 dropped")
        if script:
            assert await page.evaluate("window.hacked") is None


async def test_a_large_body_is_shortened_and_the_page_says_so(
    web: WebServer, broker: Broker, browser: Browser
) -> None:
    await broker.publish([dead("oversize", body=b"x" * 300_000)])
    async with tab(browser, web) as page:
        await page.goto("/dead-letters/list")
        await page.locator(".run-name").click()
        await expect(page.locator("main")).to_contain_text("Only its beginning is shown, of 300000 bytes.")
        assert len(await page.locator(".message-body").inner_text()) < 20_000


async def every_page(broker: Broker) -> list[str]:
    """Every page of dead letters, with content that is hard to fit."""
    wide = "unbroken" * 60
    await broker.publish(
        [
            dead(wide, headers={f"x-{wide}": wide, "x-solstice-detail": wide, "x-solstice-history": wide}),
            dead("agent_lost", number=2, headers={"x-solstice-run": "run-7"}),
        ]
    )
    return [
        "/dead-letters",
        "/dead-letters/list",
        "/dead-letters/list?reason=none",
        "/dead-letters/replay",
        "/dead-letters/drop",
        "/dead-letters/drop?reason=none",
    ]


async def test_pages_fit_are_accessible_and_readable(
    web: WebServer, broker: Broker, browser: Browser
) -> None:
    paths = await every_page(broker)
    async with tab(browser, web) as page:
        await page.goto("/dead-letters/list")
        links = [await each.get_attribute("href") for each in await page.locator(".run-name").all()]
        for path in [*paths, *map(str, links), "the work"]:
            if path == "the work":
                await page.goto("/dead-letters/replay")
                await page.locator(".confirm button").click()
                await expect(page.locator(".result")).to_be_visible()
            else:
                await page.goto(path)
            for width, scheme in WIDTHS_AND_SCHEMES:
                await page.set_viewport_size({"width": width, "height": 700})
                await page.emulate_media(color_scheme=scheme)
                assert (path, await page.evaluate(CLIPPED)) == (path, [])
                assert (path, await page.evaluate(CONTRASTS)) == (path, [])
                assert (path, await page.evaluate("document.documentElement.scrollWidth")) == (path, width)
            await page.set_viewport_size({"width": 360, "height": 700})
            found = (await Axe().run(page, options=WCAG)).response["violations"]
            wrong = [(each["id"], node["html"][:200]) for each in found for node in each["nodes"]]
            assert (path, wrong) == (path, [])


async def test_a_message_is_dropped_by_keyboard_alone(
    web: WebServer, broker: Broker, browser: Browser
) -> None:
    await broker.publish([dead()])

    async def to(page: Page, focused: str) -> None:
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await page.locator(focused).evaluate("(one) => one === document.activeElement"):
                break
        await page.keyboard.press("Enter")

    async with tab(browser, web, viewport=PHONE) as page:
        await page.goto("/dead-letters/list")
        await to(page, ".run-name")
        await page.wait_for_url("**/dead-letters/*?queue=*")
        await to(page, "form[action='/dead-letters/drop'] button")
        await page.wait_for_url("**/dead-letters/drop?*")
        await to(page, ".confirm button")
        await expect(page.locator(".result")).to_contain_text("1 of 1 dropped")
    await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_a_login_without_the_scope_sees_no_buttons_and_a_revoked_one_nothing(
    web: WebServer, broker: Broker, browser: Browser, tmp_path: Path
) -> None:
    await broker.publish([dead()])
    tokens = tmp_path / "tokens.json"
    reader = make_token(tokens, "reader", TokenScope.READ)
    operator = make_token(tokens, "operator", TokenScope.READ, TokenScope.OPERATE)
    async with tab(browser, web, errors=1, http_credentials={"username": "", "password": reader}) as page:
        for path in ("/dead-letters", "/dead-letters/list"):
            await page.goto(path)
            await expect(
                page.get_by_role("link", name="internal_error").or_(page.locator(".dead"))
            ).to_have_count(1)
            await expect(page.get_by_role("button", name="Replay")).to_have_count(0)
            await expect(page.get_by_role("button", name="Drop")).to_have_count(0)
        await page.locator(".run-name").click()
        await expect(page.locator(".message-body")).to_be_visible()
        await expect(page.get_by_role("button")).to_have_count(0)
        refused = await page.goto("/dead-letters/drop")
        assert refused is not None
        assert refused.status == 403
    async with tab(browser, web, errors=9, http_credentials={"username": "", "password": operator}) as page:
        await page.goto("/dead-letters")
        await page.get_by_role("button", name="Drop all").click()
        await expect(page.locator(".confirm")).to_be_visible()
        change(tokens, lambda known: [each for each in known if each.name != "operator"])
        await page.locator(".confirm button").click()
        await expect(page.locator("body")).to_contain_text("was it revoked")
    await wait_for_ready(broker, ROUTE.dlq, 1)


async def test_two_visitors_who_replay_the_same_message_have_one_effect(
    web: WebServer, broker: Broker, browser: Browser
) -> None:
    await broker.publish([dead()])
    async with tab(browser, web) as one, tab(browser, web) as other:
        for page in (one, other):
            await page.goto("/dead-letters")
            await page.get_by_role("button", name="Replay all").click()
            await expect(page.locator(".confirm")).to_be_visible()
        await asyncio.gather(*(page.locator(".confirm button").click() for page in (one, other)))
        results = [await page.locator(".result b").inner_text() for page in (one, other)]
        assert sorted(results) == ["0 of 1 replayed.", "1 of 1 replayed."]
    await wait_for_ready(broker, ROUTE.queue, 1)
    await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_progress_is_shown_while_it_goes_on(
    web: WebServer, broker: Broker, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_pages, "WATCH_SECONDS", 30.0)
    await broker.publish([dead(number=each) for each in range(1, 31)])
    async with tab(browser, web, java_script_enabled=False) as page:
        await page.goto("/dead-letters")
        await page.get_by_role("button", name="Replay all").click()
        await page.locator(".confirm button").click(no_wait_after=True)
        await expect(page.locator(".so-far").last).to_have_text("30 of 30 replayed …")
        await expect(page.locator(".so-far:visible")).to_have_count(1)
        await expect(page.locator(".result")).to_have_count(0)
    await wait_for_ready(broker, ROUTE.dlq, 0)
