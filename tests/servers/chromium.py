"""Finds a Chromium for the browser tests, or installs the system's. Playwright only drives it."""

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install

SHELL: Final = "chromium-headless-shell"
"""Debian's Chromium without the windows around pages, which takes half the processor time of the whole one."""
NAMES: Final = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Options: quiet on the network, and without a sandbox.

Chromium's own sandbox cannot run as root in a container.
"""


@cache
def chromium() -> Path:
    """The browser's executable: `SOLSTICE_TEST_CHROMIUM`, one on PATH, else installed with apt-get.

    RuntimeError says what to install when there is none.
    """
    named = os.environ.get("SOLSTICE_TEST_CHROMIUM")
    if named:
        if not os.access(named, os.X_OK):
            raise RuntimeError(f"SOLSTICE_TEST_CHROMIUM={named} is no program that can be run")
        return Path(named)
    if not _on_path() and apt_can_install():
        try:
            apt_install(SHELL)
        except RuntimeError:
            # An older distribution has the whole one alone.
            apt_install("chromium")
    found = _on_path()
    if not found:
        raise RuntimeError(
            "the browser tests need Chromium or Chrome: install one (Debian: apt-get install chromium), "
            "or name one with SOLSTICE_TEST_CHROMIUM"
        )
    return Path(found)


def _on_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)
