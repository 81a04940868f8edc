"""A podman with its own store, and images made from programs of this machine."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

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


NEEDED = ("podman", "runc", "iptables", "newuidmap")


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
        apt_install("podman", "runc", "uidmap", "containernetworking-plugins")
    return shutil.which("podman") is not None


def podman_is_there() -> bool:
    """Whether podman runs here."""
    return os.geteuid() == 0 and may(SYS_ADMIN) and podman_is_installed()


@contextmanager
def podman_store(folder: Path, archive: Path | None = None) -> Iterator[PodmanStore]:
    """Open a store with the images of the tests; it is removed at the end.

    With an `archive` made by `pack` the image IMAGE has its files, and is the only one.
    """
    if archive is None and not podman_is_there():
        pytest.skip(
            "not asked for: this is not root on Debian with the right to mount, and podman needs both"
        )
    folder.mkdir(parents=True)
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, check=True).stdout
    # An overlay does not lie on another one, as in a container; a user's lies on few file systems.
    driver = "vfs" if b"overlay" in kind or os.geteuid() else "overlay"
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    # Stores that share their locks wait for each other's containers.
    (folder / "containers.conf").write_text(
        f'[engine]\nruntime = "runc"\nevents_logger = "none"\nlock_type = "file"\ntmp_dir = "{folder}/tmp"\n'
    )
    (folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        **{name: os.environ[name] for name in ("XDG_RUNTIME_DIR",) if name in os.environ},
    }
    store = PodmanStore(environment=environment, folder=folder)
    try:
        if archive:
            store.run("import", "--quiet", str(archive), IMAGE)
        else:
            for name, programs in ((IMAGE, PROGRAMS), (SHELL_ONLY, ("sh",)), (NO_SHELL, ("cat",))):
                pack(folder / "image.tar", programs)
                store.run("import", "--quiet", str(folder / "image.tar"), name)
            pack(folder / "image.tar", (*PROGRAMS, "perl", "chown"))
            command = json.dumps(["/bin/sh", "-c", 'eval "$RUN"'])
            changes = ("--change", f"CMD {command}", "--change", "VOLUME /data")
            store.run("import", "--quiet", *changes, str(folder / "image.tar"), SERVER)
        yield store
    finally:
        subprocess.run(
            ["podman", "rm", "-f", "-t", "0", "-a"], env=environment, check=False, capture_output=True
        )
        subprocess.run(["umount", "--lazy", f"{folder}/graph/{driver}"], check=False, capture_output=True)
        shutil.rmtree(folder / "graph", ignore_errors=True)


def pack(archive: Path, programs: tuple[str, ...] = PROGRAMS) -> None:
    """Pack programs of this machine, with the libraries that they need, for an image."""
    root = archive.with_suffix(".files")
    for folder in ("bin", "tmp", "etc", "proc", "sys", "dev", "run", "home/ci", "workspace"):
        (root / folder).mkdir(parents=True)
    for program in programs:
        found = shutil.which(program)
        if found is None:
            raise RuntimeError(f"{program} is not on this machine")
        real = Path(found).resolve()
        shutil.copy2(real, root / "bin" / program)
        linked = subprocess.run(["ldd", str(real)], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", linked):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(library).resolve(), root / library[1:])
    if "perl" in programs:
        (modules,) = Path("/usr/lib").glob("*/perl-base")
        shutil.copytree(modules, root / modules.relative_to("/"))
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    shutil.rmtree(root)
