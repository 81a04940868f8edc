"""A podman with its own store, and images made from programs of this machine."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from solstice_cli.demo.local_images import pack
from solstice_cli.demo.local_podman import configure_podman, remove_store
from tests.servers.apt import apt_can_install, apt_install

IMAGE = "localhost/solstice-test:1"
SHELL_ONLY = "localhost/solstice-sh:1"
NO_SHELL = "localhost/solstice-empty:1"
SERVER = "localhost/solstice-server:1"
"""Its container runs the shell commands in the variable RUN, as root, and has perl."""
PROGRAMS = (
    *("sh", "bash", "sleep", "cat", "env", "id", "ls", "mkdir", "kill", "dd", "touch", "ln", "rm", "setsid"),
    *("chmod", "mount", "unshare", "nproc", "mknod", "grep", "wc", "seq", "head"),
)


CONTENTS = {
    IMAGE: PROGRAMS,
    SHELL_ONLY: ("sh",),
    NO_SHELL: ("cat",),
    SERVER: (*PROGRAMS, "perl", "chown"),
}
IMAGES = (*CONTENTS,)
_RUNS = json.dumps(["/bin/sh", "-c", 'eval "$RUN"'])
SERVER_CHANGES = (f"--change=CMD {_RUNS}", "--change=VOLUME /data")
QUICK_RUNTIME = "crun" if shutil.which("crun") else None
"""In C, and does not copy itself each time. It needs version 2 of control groups, as in guests."""
NEEDED = ("podman", "runc", "crun", "iptables", "newuidmap")


@dataclass(frozen=True, kw_only=True)
class PodmanStore:
    """Where the podman of the tests stores images and containers."""

    environment: dict[str, str]
    folder: Path

    def run(self, *arguments: str) -> str:
        """Return what podman prints; raises CalledProcessError."""
        return subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        ).stdout.decode()

    def containers(self) -> list[str]:
        """The names of all containers, running or not."""
        return self.run("ps", "--all", "--format", "{{.Names}}").split()

    def volumes(self) -> list[str]:
        """The names of all volumes."""
        return self.run("volume", "ls", "--quiet").split()

    def mounts(self) -> list[str]:
        """What is mounted in the store for containers."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        places = [line.split()[4] for line in lines]
        return [
            place for place in places if place.startswith(f"{self.folder}/") and place.count("/overlay") > 1
        ]


CNI = Path("/etc/cni/net.d/87-podman-bridge.conflist")
"""Of a podman that has its networks by CNI, as that of Debian 12."""
NET_ADMIN, SYS_ADMIN = 12, 21


def may(capability: int) -> bool:
    """Whether this process has a capability; root in a container often lacks them (capabilities(7))."""
    (effective,) = re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return bool(int(effective, 16) >> capability & 1)


def networks_can_be_made() -> bool:
    """Whether podman can give a container a network."""
    return may(NET_ADMIN)


def podman_is_installed() -> bool:
    """Whether podman is on this machine; on Debian as root it is installed."""
    if os.geteuid() == 0 and not all(map(shutil.which, NEEDED)) and apt_can_install():
        apt_install("podman", "runc", "crun", "uidmap", "containernetworking-plugins")
    return shutil.which("podman") is not None


def podman_is_there() -> bool:
    """Whether podman runs here."""
    if os.environ.get("SOLSTICE_TEST_ROOTLESS") == "user":
        return True
    return os.geteuid() == 0 and may(SYS_ADMIN) and podman_is_installed()


def configured_store(folder: Path, driver: str | None = None, runtime: str | None = None) -> PodmanStore:
    """Configure a store without images, in a folder of its own."""
    variables = configure_podman(folder, driver, runtime)
    if CNI.exists():
        # A new store would use netavark as soon as any test has installed that: a second bridge with the same addresses.
        (folder / "graph").mkdir(exist_ok=True)
        (folder / "graph" / "defaultNetworkBackend").write_text("cni")
    (folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        **variables,
        **{name: os.environ[name] for name in ("XDG_RUNTIME_DIR",) if name in os.environ},
    }
    return PodmanStore(environment=environment, folder=folder)


@contextmanager
def podman_store(folder: Path, images: Sequence[str] = IMAGES) -> Iterator[PodmanStore]:
    """Open a store with images of the tests; it is removed at the end."""
    if not podman_is_there():
        # Late: the jobs of a guest do without it.
        import pytest  # noqa: PLC0415

        # On Debian as root podman is installed, so that CI runs these; elsewhere a machine may have none.
        pytest.skip(
            "not asked for: this is not root on Debian with the right to mount, and podman needs both"
        )
    # An overlay of a user lies on few file systems.
    store = configured_store(folder) if os.geteuid() == 0 else configured_store(folder, "vfs", QUICK_RUNTIME)
    try:
        for name in images:
            perl = Path("/usr/lib").glob("*/perl-base") if name == SERVER else ()
            pack(folder / "image.tar", CONTENTS[name], perl)
            changes = SERVER_CHANGES if name == SERVER else ()
            store.run("import", "--quiet", *changes, str(folder / "image.tar"), name)
        yield store
    finally:
        subprocess.run(
            ["podman", "rm", "-f", "-t", "0", "-a"], env=store.environment, check=False, capture_output=True
        )
        remove_store(folder)
