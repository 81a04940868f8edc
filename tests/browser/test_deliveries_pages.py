"""The pages of deliveries in Chromium, from a real service, with and without JavaScript."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ViewportSize, expect

from solstice_forge.inbox import open_inbox
from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from tests.browser.test_pages import CLIPPED, CONTRASTS, WCAG
from tests.inboxes import delivery
from tests.servers.solstice_up import repository, solstice_up

PHONE: ViewportSize = {"width": 375, "height": 700}
DESKTOP: ViewportSize = {"width": 1200, "height": 800}
NATURAL_WIDTH = """
(choice) => {
  const alone = choice.cloneNode(true);
  alone.style.cssText = "position: absolute; flex: none; width: auto; min-width: 0";
  document.querySelector(".filter").append(alone);
  const width = alone.getBoundingClientRect().width;
  alone.remove();
  return Math.floor(width);
}
"""
"""How wide a choice is that nothing makes narrower."""
ALARM = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>" + "w" * 300

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A running service with a push, its copy, a ping and a stranger's text."""
    for name in ForgeSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    settings = ForgeSettings.model_validate(
        {
            "forge_port": 0,
            "forge_inbox_url": f"sqlite:///{tmp_path / 'inbox.db'}",
            "amqp_url": f"sqlite:///{tmp_path / 'broker.db'}",
            "solstice_tokens": tmp_path / "tokens.json",
            "forgejo_webhook_secret": "maple-lantern-42",
            "public_url": "https://ci.example",
        }
    )
    async with open_inbox(settings.forge_inbox_url) as inbox:
        await inbox.keep(delivery("d-1", body=b'{"ref":"refs/heads/main"}'))
        await inbox.keep(delivery("d-1"))
        await inbox.keep(delivery("ping", asks=False, repository=None))
        await inbox.keep(delivery("odd", repository=ALARM, body=ALARM.encode()))
    stop: asyncio.Event = asyncio.Event()
    where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            serve(settings, stop=stop, listening=lambda host, port: where.set_result(f"http://{host}:{port}"))
        )
        yield await where
        stop.set()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
async def test_person_finds_out_why_a_push_was_not_built(url: str, browser: Browser, *, script: bool) -> None:
    async with await browser.new_context(
        viewport=DESKTOP, base_url=url, java_script_enabled=script
    ) as profile:
        page = await profile.new_page()
        requests: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda reported: wrong.append(reported.text) if reported.type == "error" else None)
        await page.goto("/deliveries")
        await expect(page.locator(".delivery")).to_have_count(4)
        await page.get_by_label("Repository").fill("harbour/lighthouse")
        await page.get_by_label("Decision").select_option("duplicate")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator(".delivery")).to_have_count(1)
        await page.get_by_role("link", name="harbour/lighthouse").click()
        await expect(page.locator("main")).to_contain_text("The forge sent this delivery before")
        await page.get_by_role("link", name="delivery 1").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("harbour/lighthouse")
        await expect(page.get_by_role("link", name="Show the run")).to_have_attribute(
            "href", "https://ci.example/requests/request%20of%20forgejo%20d-1"
        )
        await page.get_by_text("Body").click()
        await expect(page.locator("details[open] pre")).to_contain_text("refs/heads/main")
        assert [each for each in requests if not each.startswith(url)] == []
        assert wrong == []


async def test_runs_and_deliveries_are_one_click_apart(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        up = await asyncio.to_thread(stack.enter_context, solstice_up(tmp_path / "state"))
        project = repository(
            tmp_path / "anvil", {".solstice/workflow.kdl": 'job "a" { step "s" run="true"; }'}
        )
        sent = await asyncio.to_thread(up.json, "webhook", "send", "--repo-url", str(project.folder))
        delivery_id = sent["answer"]["delivery_id"]
        async with await browser.new_context(viewport=DESKTOP) as profile:
            page = await profile.new_page()
            await page.goto(up.page)
            await expect(page.locator(".run-name")).to_have_count(1)
            await page.locator(".run-name").click()
            await page.wait_for_url(f"{up.page}/runs/*")
            run = page.url
            await page.get_by_role("link", name="delivery", exact=True).click()
            await expect(page.locator(".facts")).to_contain_text(delivery_id)
            await page.get_by_role("link", name="Show the run").click()
            await page.wait_for_url(run)
            await page.get_by_role("link", name="Deliveries", exact=True).click()
            await expect(page.locator(".delivery")).to_have_count(1)


async def test_the_words_of_a_choice_are_whole_on_a_phone(url: str, browser: Browser) -> None:
    async with await browser.new_context(base_url=url) as profile:
        page = await profile.new_page()
        await page.goto("/deliveries")
        for width in (320, 360, 375):
            await page.set_viewport_size({"width": width, "height": 700})
            for choice in ("Source", "Decision"):
                box = await page.get_by_label(choice).bounding_box()
                natural = await page.get_by_label(choice).evaluate(NATURAL_WIDTH)
                assert box is not None
                assert box["width"] >= natural
            assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_axe_finds_nothing_and_no_header_is_clipped(url: str, browser: Browser) -> None:
    async with await browser.new_context(base_url=url) as profile:
        page = await profile.new_page()
        for path in (
            "/deliveries",
            "/deliveries?reason=push",
            "/deliveries/1",
            "/deliveries/2",
            "/deliveries/99",
        ):
            await page.goto(path)
            for width in (1200, 375, 320):
                await page.set_viewport_size({"width": width, "height": 700})
                assert await page.evaluate(CLIPPED) == [], path
            found = await Axe().run(page, options=WCAG)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"


async def test_everything_is_reached_by_keyboard(url: str, browser: Browser) -> None:
    async with await browser.new_context(viewport=DESKTOP, base_url=url) as profile:
        page = await profile.new_page()
        await page.goto("/deliveries")
        reached: set[str] = set()
        for _ in range(20):
            await page.keyboard.press("Tab")
            reached.add(
                await page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
            )
        assert {"Skip to content", "repository", "source", "decision", "Filter", "delivery-1"} <= reached
        unnamed = await page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select')].filter(e => !e.labels.length).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_is_wider_than_a_phone_and_all_text_stands_out(
    url: str, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    async with await browser.new_context(viewport=PHONE, base_url=url, color_scheme=scheme) as profile:
        page = await profile.new_page()
        for path in ("/deliveries", "/deliveries/5", "/deliveries/1", "/deliveries/99"):
            await page.goto(path)
            for summary in await page.locator("summary").all():
                await summary.click()
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], path
            assert await page.evaluate("window.hacked") is None
            assert (path, await page.evaluate(CONTRASTS)) == (path, [])
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(247, 246, 243)" if scheme == "light" else "rgb(20, 23, 28)")
