"""Installs RabbitMQ 4 in a chroot, on a Debian that has an older one.

The chroot is a Debian 13 in a folder of the cache. It is built once (a minute or two, about 350 MB), then reused. A
build that is interrupted is never taken for a finished one: it happens in another folder, which is renamed when it is
complete.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install, cache_directory, locked, run
from tests.servers.rabbitmq_node import Installation

SUITE: Final = os.environ.get("SOLSTICE_TEST_DEBIAN_SUITE", "trixie")
"""The Debian release: 13 has RabbitMQ 4.0; `sid` has the newest."""
SWITCH: Final = "SOLSTICE_TEST_RABBITMQ_4"


def why_not() -> str | None:
    """Why RabbitMQ 4 cannot run beside the default one; None when it can."""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0"
    if os.geteuid() != 0:
        return "it needs root (chroot)"
    if shutil.which("unshare") is None or shutil.which("chroot") is None:
        return "it needs unshare and chroot"
    if shutil.which("debootstrap") is None and not apt_can_install():
        return "it needs debootstrap"
    return None


def installation() -> Installation:
    """The RabbitMQ of that Debian, installed when it is missing."""
    root = cache_directory() / ("rabbitmq-4" if SUITE == "trixie" else f"rabbitmq-4-{SUITE}")
    with locked(root.name):
        if not root.exists():
            _build(root)
    (server,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
    return Installation(
        version=server.name.partition("-")[2], programs=Path("/usr/lib/rabbitmq/bin"), root=root
    )


def _build(root: Path) -> None:
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap", "debian-archive-keyring")
    building = root.with_name(f"{root.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    # Debian's own mirror by default: debootstrap knows it.
    mirror = os.environ.get("SOLSTICE_TEST_DEBIAN_MIRROR")
    bootstrap = ["debootstrap", "--variant=minbase", SUITE, str(building), *([mirror] if mirror else [])]
    # In a mount namespace of its own: what debootstrap mounts in the folder ends with it.
    run("unshare", "--mount", "--propagation", "private", *bootstrap)
    (building / "etc/hosts").write_text("127.0.0.1 localhost\n")
    apt_install("rabbitmq-server", root=building)
    shutil.rmtree(building / "var/cache/apt", ignore_errors=True)
    building.rename(root)
