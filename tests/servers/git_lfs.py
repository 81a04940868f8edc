"""Bring git-lfs onto a machine that has apt-get."""

import shutil

from tests.servers.apt import apt_can_install, apt_install

NOTHING_FOUND = """\
These tests need git-lfs. Install the package git-lfs, or run the tests as root on Debian or Ubuntu, and they install it
themselves."""


def bring_git_lfs() -> None:
    """Install git-lfs where it is not installed."""
    if shutil.which("git-lfs") is None and apt_can_install():
        apt_install("git-lfs")
    if shutil.which("git-lfs") is None:
        raise RuntimeError(NOTHING_FOUND)
