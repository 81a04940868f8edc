"""One Chromium for all tests of a process, since it takes longer to start than most of them; each has its own profile."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.servers.chromium import FLAGS, chromium

expect.set_options(timeout=20_000)  # a machine that is shared may be slow


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Lives in the event loop of the session, in which its tests and their servers therefore run, too."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser
        await browser.close()
