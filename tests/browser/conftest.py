"""Starts one Chromium for all tests of a process; each test has its own profile.

Starting it takes longer than most of the tests.
"""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.servers.chromium import FLAGS, chromium

expect.set_options(timeout=20_000)  # a machine that is shared may be slow


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Lives in the session's event loop, in which its tests and their servers also run."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser
        await browser.close()
