"""Installs servers in a chroot, on a Debian that has only older ones.

The chroot is a Debian 13 in a folder of the cache. It is built once (a minute or two, about 350 MB), then reused. A
build that is interrupted is never taken for a finished one: it happens in another folder, which is renamed when it is
complete.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install, cache_directory, locked, run

SUITE: Final = os.environ.get("SOLSTICE_TEST_DEBIAN_SUITE", "trixie")
"""The Debian release: 13 has RabbitMQ 4.0, Redis 8.0 and Valkey 8.1; `sid` has the newest."""


def why_not() -> str | None:
    """Why there can be no such Debian here; None when there can."""
    if os.geteuid() != 0:
        return "it needs root (chroot)"
    if shutil.which("unshare") is None or shutil.which("chroot") is None:
        return "it needs unshare and chroot"
    if shutil.which("debootstrap") is None and not apt_can_install():
        return "it needs debootstrap"
    return None


def newer_debian(*packages: str) -> Path:
    """The folder of that Debian, with these packages; what is missing is installed."""
    root = cache_directory() / f"debian-{SUITE}"
    with locked(root.name):
        if not root.exists():
            _build(root)
        missing = [each for each in packages if not (root / "var/lib/dpkg/info" / f"{each}.list").exists()]
        if missing:
            apt_install(*missing, root=root)
            shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    return root


def _build(root: Path) -> None:
    building = root.with_name(f"{root.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    bootstrap(SUITE, building)
    (building / "etc/hosts").write_text("127.0.0.1 localhost\n")
    building.rename(root)


def bootstrap(suite: str, root: Path, *options: str) -> None:
    """Install a small Debian in a folder."""
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap", "debian-archive-keyring")
    # Debian's own mirror by default: debootstrap knows it.
    mirror = os.environ.get("SOLSTICE_TEST_DEBIAN_MIRROR")
    command = ["debootstrap", "--variant=minbase", *options, suite, str(root), *([mirror] if mirror else [])]
    # In a mount namespace of its own: what debootstrap mounts in the folder ends with it.
    run("unshare", "--mount", "--propagation", "private", *command)
