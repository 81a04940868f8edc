"""The pages as a person's browser shows them: Chromium, a real server, a real store."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, ViewportSize, expect

from solstice_common.messages.states import JobState
from solstice_common.values import times
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.scheduling.workers import QuarantineOrder
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.views import ChunkKind
from solstice_orchestrator.web.api.log_rows import MAX_ROWS
from tests.schedules import COMMIT, added_schedule, claimed_tick
from tests.servers.orchestrator_web import WORKER, WebServer, serve_web, spec
from tests.stores import retries_after, worker_record

DESKTOP: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 375, "height": 700}
LOST = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail="no route to host")

STEP_FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=1)
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}

ALARM = "<script>window.hacked=1;alert(1)</script><img src=x onerror='window.hacked=1;alert(1)'>"

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path, retries=retries_after(0.0)) as served:
        yield served


@asynccontextmanager
async def tab(
    browser: Browser, web: WebServer, *, viewport: ViewportSize = DESKTOP, errors: int = 0, **context: Any
) -> AsyncGenerator[Page, None]:
    """Open a page of a new profile; leaving asserts that it had no error.

    It also asserts that the page requested nothing but our server.

    `errors` is how many errors the console may show, which is where Chromium also reports a plain 404.
    """
    async with await browser.new_context(viewport=viewport, base_url=web.url, **context) as profile:
        page = await profile.new_page()
        wrong: list[str] = []
        console: list[str] = []
        page.on(
            "console", lambda reported: console.append(reported.text) if reported.type == "error" else None
        )
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: None if request.url.startswith(web.url) else wrong.append(f"asked {request.url}"),
        )
        await page.add_init_script(WATCH)
        yield page
        if context.get("java_script_enabled", True):
            wrong += await page.evaluate("window.violations")
        assert wrong == []
        assert len(console) <= errors, console


async def job_page(
    web: WebServer, *, pieces: tuple[str, ...] = (), **fields: object
) -> tuple[AttemptKey, str]:
    """A running job that printed these, and where its page is."""
    key = await web.running(spec("test"), **fields)
    if pieces:
        await web.prints(key, *pieces)
    return key, f"/jobs/{key.job_id}"


# -- live ------------------------------------------------------------------------------------------------------------


async def test_log_of_a_running_job_appears_as_it_is_written(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web)
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator("#no-log")).to_have_text("Nothing printed yet.")
        await expect(page.locator("#live")).to_have_text("Live")
        await web.prints(key, "\x1b[32mgreen\x1b[0m\n", "10%")
        await expect(page.locator("#L1 .f2")).to_have_text("green")
        await expect(page.locator("#L2 .t")).to_have_text("10%")
        await web.prints(key, "\r99%\n", b"caf\xc3", b"\xa9\n")
        await expect(page.locator("#L2 .t")).to_have_text("99%")
        await expect(page.locator("#L3 .t")).to_have_text("café")
        await expect(page.locator(".pill").first).to_have_text("Running")
        await web.finish(key)
        await expect(page.locator(".pill").first).to_have_text("Succeeded")
        await expect(page.locator("#live")).to_be_hidden()
        await expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
        await expect(page.locator(".row")).to_have_count(3)


async def test_page_goes_on_after_the_connection_was_lost(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=("\x1b[31mone\n", "tw"))
    async with tab(browser, web, errors=100) as page:
        await page.goto(path)
        await expect(page.locator("#live")).to_have_text("Live")
        # A server that goes away and comes again on the same address ends its streams, as this does.
        web.streams.close()
        await expect(page.locator("#live")).to_have_text("Reconnecting …")
        await web.prints(key, "o\n", "three\n")
        web.streams.closed = False
        await expect(page.locator("#L3 .f1")).to_have_text("three")
        await expect(page.locator("#live")).to_have_text("Live")
        assert await page.locator(".t").all_text_contents() == ["one", "two", "three"]


async def test_next_attempt_replaces_the_log(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=("first try\n",))
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator("#L1 .t")).to_have_text("first try")
        await expect(page.locator("#live")).to_have_text("Live")
        await web.finish(key, LOST)
        await web.store.rescue()
        again = await web.claim(key.job_id)
        await web.prints(again, "second try\n")
        await expect(page.locator("#L1 .t")).to_have_text("second try")
        await expect(page.locator(".attempts a[aria-current]")).to_have_text("Attempt 2")
        await page.get_by_role("link", name="Attempt 1").click()
        await expect(page.locator("#L1 .t")).to_have_text("first try")
        await expect(page.locator("#live")).to_be_hidden()


async def test_the_log_of_a_service_is_followed_like_that_of_its_job(
    web: WebServer, browser: Browser
) -> None:
    key, path = await job_page(web, pieces=("of the job\n",))
    live, lines = "#live", ".t"
    async with tab(browser, web, errors=100) as page:
        await page.goto(path)
        await expect(page.locator(live)).to_have_text("Live")
        await expect(page.locator("#log-tabs a")).to_have_count(0)
        # Its first words make the link appear.
        await web.prints(key, "\x1b[32mready\n", "acc", service="db")
        await page.get_by_role("link", name="Service db").click()
        await expect(page.get_by_role("heading", name="Log of service db")).to_be_visible()
        await expect(page.locator(live)).to_have_text("Live")
        await web.prints(key, "more of the job\n")
        await web.prints(key, "epts\n", "<b>bold</b>\n", service="db")
        await expect(page.locator(lines)).to_have_text(["ready", "accepts", "<b>bold</b>"])
        web.streams.close()
        await expect(page.locator(live)).to_have_text("Reconnecting …")
        await web.prints(key, "goes on\n", service="db")
        web.streams.closed = False
        await expect(page.locator("#L4 .f2")).to_have_text("goes on")
        await web.finish(key, LOST)
        await web.store.rescue()
        again = await web.claim(key.job_id)
        await web.prints(again, "second try\n", service="db")
        await expect(page.locator(lines)).to_have_text(["second try"])
        await expect(page.locator(".attempts a[aria-current]")).to_have_text("Attempt 2")
        await web.finish(again, LOST)
        await web.store.rescue()
        await web.finish(await web.claim(key.job_id))
        await expect(page.locator(live)).to_be_hidden()
        await expect(page.locator(".pill").first).to_have_text("Succeeded")
        await expect(page.locator("#no-log")).to_have_text("This service printed nothing in this attempt.")
        await page.get_by_role("link", name="Attempt 1").click()
        await expect(page.locator(lines)).to_have_text(["of the job", "more of the job"])
        await page.get_by_role("link", name="Service db").click()
        await expect(page.locator(lines)).to_have_text(["ready", "accepts", "<b>bold</b>", "goes on"])


async def test_gap_in_the_log_is_shown(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=("before\n",))
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator("#live")).to_have_text("Live")
        await web.prints(key, "after\n", skip=2)
        await expect(page.locator(".remark")).to_have_text(
            "Output is missing here: pieces 2 to 3 were never stored."
        )
        await expect(page.locator("#L2 .t")).to_have_text("after")


async def test_only_marks_look_like_marks(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=("$ checkout\n! cancelled\nopen\x1b]0;",))
    marks = ["$ <b>test</b>", "! ended"]
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator("#live")).to_have_text("Live")
        await web.prints(key, "$ <b>test</b>\n", kind=ChunkKind.MARK)
        await web.prints(key, "\r\x1b[1A\x1b[2K\b\b$ more\r! less\n")
        await web.prints(key, "! ended\n", kind=ChunkKind.MARK)
        for _ in ("as it came", "painted again"):
            await expect(page.locator(".remark")).to_have_text(marks)
            await expect(page.locator(".row:not(.remark) .t")).to_have_text(
                ["$ checkout", "! cancelled", "open", "! less"]
            )
            await expect(page.locator(".remark .n")).to_have_count(0)
            await page.reload()


async def test_log_follows_its_end_until_the_reader_scrolls_up(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web)
    async with tab(browser, web) as page:
        await page.goto(path)
        follow = page.get_by_label("Follow")
        await expect(follow).to_be_checked()
        await web.prints(key, *(f"line {number}\n" for number in range(1, 201)))
        await expect(page.locator("#L200")).to_be_in_viewport()
        await page.mouse.move(400, 400)
        await page.mouse.wheel(0, -2000)
        await expect(follow).not_to_be_checked()
        await web.prints(key, *(f"line {number}\n" for number in range(201, 301)))
        await expect(page.locator("#L300")).to_be_attached()
        await expect(page.locator("#L300")).not_to_be_in_viewport()
        await follow.check()
        await expect(page.locator("#L300")).to_be_in_viewport()


async def test_huge_log_shows_its_end_and_leads_to_the_rest(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=tuple("x\n" * 1000 for _ in range(30)))
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator(".row")).to_have_count(MAX_ROWS)
        await expect(page.locator("#hidden-lines")).to_contain_text(f"The first {30_000 - MAX_ROWS} lines")
        await expect(page.locator("#live")).to_have_text("Live")
        await web.prints(key, "the newest\n")
        await expect(page.locator("#L30001 .t")).to_have_text("the newest")
        await web.prints(key, *("y\n" * 1000 for _ in range(10)))
        await expect(page.locator("#L40001")).to_be_attached()
        await expect(page.locator(".row")).to_have_count(10_000)
        await expect(page.locator("#hidden-lines")).to_contain_text("The first 30001 lines")
        # Of so many at once not all are sent.
        await web.prints(key, "\n" * 20_000, "again\n")
        await expect(page.locator("#L60002 .t")).to_have_text("again")
        await expect(page.locator(".row")).to_have_count(10_000)
        await expect(page.locator("#hidden-lines")).to_contain_text("The first 50002 lines")


async def test_runs_appear_by_themselves(web: WebServer, browser: Browser) -> None:
    async with tab(browser, web) as page:
        await page.goto("/")
        await expect(page.get_by_text("solstice enqueue")).to_be_visible()
        await expect(page.locator("#live")).to_have_text("Live")
        run, ids = await web.plan(spec())
        row = page.locator(".run")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("harbour/lighthouse")
        key = await web.claim(ids["build"])
        await web.finish(key)
        await expect(row.locator(".pill")).to_have_text("Succeeded")
        await row.get_by_role("link", name="harbour/lighthouse").click()
        await page.wait_for_url(f"**/runs/{run.run_id}")


async def test_jobs_of_a_run_change_by_themselves(web: WebServer, browser: Browser) -> None:
    run, ids = await web.plan(spec("lint"), spec("test", needs=["lint"]))
    async with tab(browser, web) as page:
        await page.goto(f"/runs/{run.run_id}")
        pills = page.locator(".job .pill")
        await expect(pills).to_have_text(["Waiting", "Blocked"])
        await web.finish(await web.claim(ids["lint"]))
        await expect(pills).to_have_text(["Succeeded", "Waiting"])
        key = await web.claim(ids["test"])
        await expect(pills).to_have_text(["Succeeded", "Running"])
        await web.finish(
            key, Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=2, step="test")
        )
        await expect(page.locator(".heading .pill")).to_have_text("Failed")
        await expect(page.get_by_text("Step “test” ended with exit code 2.")).to_be_visible()


# -- steering --------------------------------------------------------------------------------------------------------


async def test_cancel_button_ends_a_waiting_job(web: WebServer, browser: Browser) -> None:
    _, ids = await web.plan(spec())
    async with tab(browser, web) as page:
        await page.goto(f"/jobs/{ids['build']}")
        await page.get_by_role("button", name="Cancel job").click()
        await expect(page.locator(".pill").first).to_have_text("Cancelled")
        await expect(page.get_by_text("It was cancelled on this machine.")).to_be_visible()


async def test_cancel_of_a_running_run_says_that_it_was_asked_for(web: WebServer, browser: Browser) -> None:
    key = await web.running()
    job = await web.store.job(key.job_id)
    assert job is not None
    async with tab(browser, web) as page:
        await page.goto(f"/runs/{job.run_id}")
        await page.get_by_role("button", name="Cancel run").click()
        await expect(page.get_by_role("status")).to_contain_text("Asked for the end of this run")
        await web.finish(key, Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED))
        await expect(page.locator(".heading .pill")).to_have_text("Cancelled")
        await expect(page.get_by_role("status")).to_have_count(0)


async def test_run_again_leads_to_the_new_run(web: WebServer, browser: Browser) -> None:
    run, ids = await web.plan(spec())
    await web.store.cancel_job(ids["build"])
    async with tab(browser, web) as page:
        await page.goto(f"/runs/{run.run_id}")
        await page.get_by_role("button", name="Rerun all").click()
        await expect(page.locator(".heading .pill")).to_have_text("Planning")
        await page.get_by_role("link", name="of an earlier run").click()
        await page.wait_for_url(f"**/runs/{run.run_id}")


async def test_run_again_on_the_page_of_a_job_is_that_job_with_what_needs_it(
    web: WebServer, browser: Browser
) -> None:
    specs = [spec("lint"), spec("test"), spec("ship", needs=["test"])]
    run, ids = await web.plan(*specs)
    claims = {claim.spec.name: claim.key for claim in await web.store.claim(WORKER, {"linux": 9}, 9)}
    await web.finish(claims["lint"])
    await web.finish(claims["test"], STEP_FAILED)
    async with tab(browser, web) as page:
        await page.goto(f"/jobs/{ids['test']}")
        await expect(page.get_by_role("button")).to_have_text(["Run again", "Rerun failed", "Rerun all"])
        await page.get_by_role("button", name="Run again").click()
        await page.wait_for_url(lambda url: "/runs/" in url and run.run_id not in url)
        (task,) = await web.store.claim_planning(WORKER, 9)
        assert await web.store.planned(task, specs)
        await expect(page.locator(".job-name")).to_have_text(["test", "ship"])


async def test_who_cancelled_is_named(web: WebServer, browser: Browser) -> None:
    run, ids = await web.plan(spec("test"))
    async with tab(browser, web) as page:
        await page.goto(f"/jobs/{ids['test']}")
        await page.get_by_role("button", name="Cancel job").click()
        await expect(page.locator("#head")).to_contain_text("cancelled on this machine")
        await page.goto(f"/runs/{run.run_id}")
        await expect(page.locator("#jobs")).to_contain_text("It was cancelled on this machine.")


async def test_errored_runs_say_why_in_the_list(web: WebServer, browser: Browser) -> None:
    await web.admit()
    (task,) = await web.store.claim_planning(WORKER, 9)
    await web.store.not_planned(task, Reason.COMMIT_NOT_FOUND, "fatal: no such repository\nsecond line")
    async with tab(browser, web) as page:
        await page.goto("/")
        await expect(page.locator(".trouble")).to_have_text("fatal: no such repository")


async def test_a_label_in_the_url_is_applied_and_shown(web: WebServer, browser: Browser) -> None:
    await web.plan(spec("a", runs_on="linux"))
    await web.plan(spec("b", runs_on="illumos"), repo_full_name="harbour/keeper")
    async with tab(browser, web) as page:
        await page.goto("/?label=illumos")
        await expect(page.locator(".run-name")).to_have_text(["harbour/keeper"])
        await expect(page.locator(".notice")).to_contain_text("label illumos")


@pytest.mark.parametrize("path", ["/", "/schedules", "/workers", "/dead-letters", "/dead-letters/list"])
async def test_a_filter_that_a_list_does_not_know_is_refused(
    web: WebServer, browser: Browser, path: str
) -> None:
    async with tab(browser, web, errors=1) as page:
        await page.goto(f"{path}?colour=red")
        await expect(page.locator("main")).to_contain_text("'colour' is not known here; known are")


async def test_a_link_to_a_line_that_is_not_shown_shows_it(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web)
    await web.prints(key, "".join(f"line {number}\n" for number in range(1, 6001)))
    async with tab(browser, web) as page:
        await page.goto(f"{path}#L7")
        await expect(page.locator("#L7 .t")).to_have_text("line 7")
        await expect(page.locator("#L7")).to_be_in_viewport()
        await page.goto(f"{path}#L3000")
        await expect(page.locator("#L3000 .t")).to_have_text("line 3000")
        await page.get_by_role("link", name="Show the end").click()
        await expect(page.locator("#L6000")).to_be_visible()


CLIPPED = """
() => [...document.querySelectorAll(".top *")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => one.outerHTML)
"""


async def test_axe_finds_nothing_no_header_is_clipped_and_nothing_is_wider_than_a_phone(
    web: WebServer, browser: Browser
) -> None:
    paths = [*await every_page(web), "/workers", "/schedules"]
    await web.store.register(worker_record(WORKER))
    async with tab(browser, web, errors=1) as page:
        for path in paths:
            await page.goto(path)
            for width in (1200, PHONE["width"], 320):
                await page.set_viewport_size({"width": width, "height": 700})
                assert (path, await page.evaluate(CLIPPED)) == (path, [])
                assert (path, await page.evaluate("document.documentElement.scrollWidth")) == (path, width)
            # The narrow page has all that the wide one has, and what is shown there alone.
            found = (await Axe().run(page, options=WCAG)).response["violations"]
            wrong = [(each["id"], node["html"][:200]) for each in found for node in each["nodes"]]
            assert (path, wrong) == (path, [])


async def test_filter_shows_what_was_asked_for(web: WebServer, browser: Browser) -> None:
    await web.admit(repo_full_name="harbour/keeper")
    await web.admit()
    async with tab(browser, web) as page:
        await page.goto("/")
        await expect(page.locator(".run")).to_have_count(2)
        await page.get_by_label("Repository").fill("harbour/keeper")
        await page.keyboard.press("Enter")
        await expect(page.locator(".run")).to_have_count(1)
        await page.get_by_label("State").select_option("failed")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
        await page.get_by_role("link", name="Show all runs").click()
        await expect(page.locator(".run")).to_have_count(2)


async def test_everything_is_reached_by_keyboard(web: WebServer, browser: Browser) -> None:
    run = await web.admit()
    async with tab(browser, web) as page:
        await page.goto("/")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        await expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
        link = page.locator(".run-name")
        for _ in range(10):
            await page.keyboard.press("Tab")
            if await link.evaluate("(link) => link === document.activeElement"):
                break
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/runs/{run.run_id}")


# -- hostile ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_what_strangers_write_is_only_text(web: WebServer, browser: Browser, script: bool) -> None:
    quotes = "\"'`--><svg/onload=alert(1)>"
    key, path = await job_page(
        web,
        pieces=(
            ALARM,
            "\n\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07\n",
            quotes,
            "</span></div></html>\n",
        ),
        ref=f"refs/heads/{ALARM}"[:255],
        sender=quotes,
        repo_full_name=f"harbour/{ALARM}"[:255],
        repo_url="ssh://git@forge.example/x'onclick=alert(1)",
        event='<b onmouseover="alert(1)">push',
    )
    job = await web.store.job(key.job_id)
    assert job is not None
    async with tab(browser, web, errors=1, java_script_enabled=script) as page:
        for where in (path, f"/runs/{job.run_id}", "/", f"/?repository={quotes}", f"/runs/{quotes}"[:60]):
            answer = await page.goto(where.replace("#", "%23"))
            assert answer is not None
            if not script:
                continue
            assert await page.evaluate("window.hacked") is None
            assert await page.locator("script:not([src='/static/app.js'])").count() == 0
            assert await page.locator("svg:not(.icon), [onerror], [onclick], [onload]").count() == 0
            assert await page.locator("a[href^='javascript']").count() == 0
        if script:
            await page.goto(path)
            await expect(page.locator("#live")).to_have_text("Live")
            await web.prints(key, ALARM, "\n", quotes, "\x1b[31m<b>", "</b>\x1b[0m\n")
            await expect(page.locator(".row").last).to_contain_text(f"{quotes}<b></b>")
            assert await page.evaluate("window.hacked") is None
            assert await page.locator(".t img, .t script, .t b, .t svg").count() == 0


# -- looks -----------------------------------------------------------------------------------------------------------

LONG = "feature/" + "rework-everything-" * 12


async def every_page(web: WebServer) -> list[str]:
    """Every kind of page, with content that is hard to fit."""
    key, job_path = await job_page(
        web,
        pieces=("x" * 3000 + "\n", "\x1b[41m" + "word " * 400 + "\n"),
        ref=f"refs/heads/{LONG}"[:255],
        sender="s" * 200,
        repo_full_name=f"{'owner' * 20}/{'name' * 20}",
    )
    await web.prints(key, "y" * 3000 + "\n", service="s" * 63)
    job = await web.store.job(key.job_id)
    assert job is not None
    bad = await web.admit()
    (task,) = await web.store.claim_planning("worker-1", 10)
    assert task.run_id == bad.run_id
    await web.store.not_planned(task, Reason.INVALID_WORKFLOW, "workflow.kdl:1:1: " + "unbroken" * 60)
    of_service = f"{job_path}?service={'s' * 63}"
    of_run = f"/runs/{job.run_id}"
    return ["/", of_run, job_path, of_service, f"/runs/{bad.run_id}", "/?repository=none", "/nowhere"]


CONTRASTS = """
() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/^rgba\\(.*, 0(\\.\\d+)?\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("main *, header *, footer *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(`${element.className || element.tagName}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)];
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_from_what_is_behind(web: WebServer, browser: Browser, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1."""
    paths = await every_page(web)
    await web.admit()
    _, ids = await web.plan(spec("waits", runs_on="other"))
    await web.store.cancel_job(ids["waits"])
    done = await web.running(spec("done", runs_on="third"))
    codes = [
        *range(31, 38),
        *range(91, 98),
        *range(40, 48),
        *range(100, 108),
        *(f"30;{n}" for n in range(41, 48)),
    ]
    colours = "".join(f"\x1b[{code}mcolour {code}\x1b[0m\n" for code in (*codes, "7", "7;31", 2))
    await web.prints(done, colours)
    await web.finish(done)
    async with tab(browser, web, color_scheme=scheme, errors=1) as page:
        for path in (*paths, f"/jobs/{done.job_id}"):
            await page.goto(path)
            assert (path, await page.evaluate(CONTRASTS)) == (path, [])


async def test_dark_is_dark_and_light_is_light(web: WebServer, browser: Browser) -> None:
    shown = {}
    for scheme in ("light", "dark"):
        async with tab(browser, web, color_scheme=scheme) as page:
            await page.goto("/")
            shown[scheme] = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    light, dark = (sum(map(int, re.findall(r"\d+", shown[scheme])[:3])) for scheme in ("light", "dark"))
    assert light > 600
    assert dark < 150


async def test_script_writes_times_as_the_server_does(web: WebServer, browser: Browser) -> None:
    limits = [limit + step for limit in (0, 1, 10, 60, 3600, 86_400) for step in (-1, -0.01, 0, 0.01, 1)]
    chosen = Random(14)
    seconds = [*limits, *(round(10 ** chosen.uniform(-2, 8), 3) for _ in range(500))]
    async with tab(browser, web) as page:
        await page.goto("/")
        page_shows = await page.evaluate(
            "async (all) => { const { ago, age, duration } = await import('/static/times.js');"
            " return all.map((one) => [ago(one), age(one), duration(one)]); }",
            seconds,
        )
    assert page_shows == [[times.ago(each), times.age(each), times.duration(each)] for each in seconds]


async def test_line_can_be_linked_to(web: WebServer, browser: Browser) -> None:
    _, path = await job_page(web, pieces=tuple(f"line {number}\n" for number in range(1, 301)))
    async with tab(browser, web) as page:
        await page.goto(f"{path}#L150")
        await expect(page.locator("#L150")).to_be_in_viewport()
        await expect(page.get_by_label("Follow")).not_to_be_checked()
        await page.get_by_label("Line 151", exact=True).click()
        await page.wait_for_url("**#L151")


async def test_pages_can_be_read_without_script(web: WebServer, browser: Browser) -> None:
    key, _ = await job_page(web, pieces=("\x1b[1mhello\x1b[0m\n",))
    async with tab(browser, web, java_script_enabled=False) as page:
        await page.goto("/")
        await page.get_by_role("link", name="harbour/lighthouse").click()
        await page.get_by_role("link", name="test").click()
        await expect(page.locator("#L1 .bold")).to_have_text("hello")
        await expect(page.get_by_label("Follow")).to_be_hidden()
        await page.get_by_role("button", name="Cancel job").click()
        await expect(page.get_by_role("status")).to_contain_text("Asked the job to stop")
    assert (await web.store.renew("worker-1", [key])).cancelled == {key}


async def test_hidden_tab_holds_no_connection(web: WebServer, browser: Browser) -> None:
    key, path = await job_page(web, pieces=("one\n",))
    async with tab(browser, web) as page:
        await page.goto(path)
        await expect(page.locator("#live")).to_have_text("Live")
        hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }"
        await page.evaluate(hide, True)
        async with asyncio.timeout(20):
            while len(web.streams):  # noqa: ASYNC110  what is waited for belongs to the server and sends no notification
                await asyncio.sleep(0.01)
        await web.prints(key, "two\n")
        await page.evaluate(hide, False)
        await expect(page.locator("#L2 .t")).to_have_text("two")
        assert await page.locator(".t").all_text_contents() == ["one", "two"]


# -- workers -----------------------------------------------------------------------------------------------------------


async def test_workers_are_shown_with_what_they_run_and_obey_their_buttons(
    web: WebServer, browser: Browser
) -> None:
    await web.store.register(worker_record(WORKER, name="quay"))
    key = await web.running(spec("test"))
    async with tab(browser, web) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Workers").click()
        await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
        row = page.locator(".worker")
        await expect(row.locator(".pill")).to_have_text("Active")
        await expect(row).to_contain_text("linux=4")
        await expect(row.get_by_role("link", name="test")).to_have_attribute("href", f"/jobs/{key.job_id}")
        await row.get_by_role("button", name="Pause").click()
        await expect(row.locator(".pill")).to_have_text("Paused")
        await row.get_by_role("button", name="Resume").click()
        await expect(row.locator(".pill")).to_have_text("Active")
        await row.get_by_role("button", name="Drain").click()
        await expect(row.locator(".pill")).to_have_text("Draining")
        await expect(row.get_by_role("button")).to_have_count(0)


async def test_the_workers_page_stays_fresh(web: WebServer, browser: Browser) -> None:
    async with tab(browser, web, viewport=PHONE) as page:
        await page.goto("/workers")
        await expect(page.get_by_role("heading", name="No workers")).to_be_visible()
        await expect(page.locator("#live")).to_have_text("Live")
        await web.store.register(worker_record(WORKER, name="<b>quay</b>"))
        await expect(page.locator(".worker-name")).to_have_text("<b>quay</b>")
        await web.store.steer_worker(WORKER, QuarantineOrder(seconds=600))
        await expect(page.locator(".worker .pill")).to_have_text("Quarantined")
        await expect(page.locator(".worker")).to_contain_text("Takes no jobs for 9 min")
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]


# -- schedules -------------------------------------------------------------------------------------------------------


async def test_schedules_show_when_they_are_due_and_what_became_of_their_last_tick(
    web: WebServer, browser: Browser
) -> None:
    schedule_store = web.store.schedule_store
    await added_schedule(schedule_store, cron="30 2 * * MON-FRI", timezone="Europe/Berlin")
    async with tab(browser, web) as page:
        await page.goto("/schedules")
        item = page.locator(".worker")
        await expect(item.locator(".worker-name")).to_have_text("nightly")
        await expect(item.locator(".pill")).to_have_text("New")
        await expect(item).to_contain_text("Next 2")
        await page.get_by_role("button", name="Run now").click()
        settled = await schedule_store.fired(await claimed_tick(schedule_store), COMMIT)
        assert settled is not None
        await expect(item.locator(".pill")).to_have_text("Planning")
        await expect(item.locator(f'a[href="/runs/{settled.run_id}"]').first).to_be_visible()
        await page.get_by_role("button", name="Pause").click()
        await expect(item).to_contain_text("Paused")
        await page.get_by_role("button", name="Resume").click()
        await expect(item).to_contain_text("Next 2")


async def test_names_and_errors_of_schedules_are_text(web: WebServer, browser: Browser) -> None:
    schedule_store = web.store.schedule_store
    await added_schedule(
        schedule_store, name=ALARM, repo_full_name=ALARM, branch=ALARM, workflow_path=ALARM, repo_url=ALARM
    )
    await schedule_store.fire(ALARM)
    await schedule_store.not_fired(
        await claimed_tick(schedule_store), TickReason.FORGE_AWAY, ALARM, retry=False
    )
    async with tab(browser, web, viewport=PHONE) as page:
        await page.goto("/schedules")
        await expect(page.locator(".worker-name")).to_have_text(ALARM)
        await expect(page.locator(".pill")).to_have_text("Failed")
        assert await page.evaluate("window.hacked") is None
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


async def test_without_schedules_the_page_says_how_to_add_one(web: WebServer, browser: Browser) -> None:
    async with tab(browser, web, java_script_enabled=False) as page:
        await page.goto("/schedules")
        await expect(page.locator("pre")).to_contain_text("solstice schedules add nightly")
        await expect(page.get_by_role("link", name="Schedules")).to_be_visible()
