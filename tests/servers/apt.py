"""Installs what the tests need from Debian's or Ubuntu's archive, as root."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")


def apt_can_install() -> bool:
    """Whether this is a Debian or Ubuntu, and we may change it."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages: str, root: Path | None = None) -> None:
    """Install `packages` without starting their services.

    They are installed here or in the Debian under `root`.
    """
    inside = Path("/") if root is None else root
    with locked("apt"), services_stay_down(inside):
        # The lists of a container image are empty or old; existing lists may still suffice.
        run("apt-get", "update", "-q", root=root, check=False)
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", *packages, root=root)


@contextmanager
def services_stay_down(root: Path) -> Iterator[None]:
    """Prevent packages from starting services (policy-rc.d); restore that afterwards."""
    policy = root / POLICY.relative_to("/")
    stored = policy.with_name("policy-rc.d.before-tests")
    if policy.exists() or policy.is_symlink():
        policy.rename(stored)
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
        if stored.exists() or stored.is_symlink():
            stored.rename(policy)


def run(*command: str, root: Path | None = None, check: bool = True) -> None:
    """Run one command, here or under `root`.

    While it runs under `root`, /proc and /dev are mounted there.

    Raises RuntimeError with everything it printed.
    """
    line: Sequence[str] = command
    if root is not None:
        enter = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
        line = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            enter,
            "sh",
            str(root),
            *command,
        ]
    environment = {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
    }
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if check and ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed ({ran.returncode}):\n{ran.stdout}{ran.stderr}")


def cache_directory() -> Path:
    """The folder that keeps slowly installed servers between test runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "solstice-ci"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock that excludes other processes of this user.

    The lock ends with the process. A test's time limit is paused meanwhile.
    """
    with (cache_directory() / f"{name}.lock").open("w") as lock, without_test_timeout():
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def without_test_timeout() -> Iterator[None]:
    """Stop pytest-timeout's clock while something is installed from the network.

    It happens once per machine, in the first test that needs it.
    """
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
