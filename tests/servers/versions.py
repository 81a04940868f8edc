"""Which further versions of Redis and NATS the suites of the broker run on.

Redis 8 and Valkey come from a newer Debian, the oldest NATS that we support from its wheel.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.servers.apt import cache_directory, locked
from tests.servers.newer_debian import newer_debian
from tests.servers.newer_debian import why_not as why_no_newer_debian

SWITCH: Final = "SOLSTICE_TEST_MORE_VERSIONS"
REDIS: Final = "redis"
NATS: Final = "nats"
OF_NEWER_DEBIAN: Final = {"redis-8": "redis-server", "valkey": "valkey-server"}
"""Packages there; each has its program by the same name."""
NATS_2_10: Final = "nats-2.10"
PINNED: Final = Path(__file__).with_name("requirements-nats-2.10.txt")
ROOT: Final = Path(__file__).parents[2]


@cache
def redis_flavours() -> tuple[Sequence[str], str | None]:
    """The Redises to test on, and why there may be only the usual one."""
    reason = f"{SWITCH}=0" if _switched_off() else why_no_newer_debian()
    return ((REDIS, *OF_NEWER_DEBIAN), None) if reason is None else ((REDIS,), reason)


@cache
def nats_flavours() -> tuple[Sequence[str], str | None]:
    """The NATS servers to test on, and why there may be only the usual one."""
    if _switched_off():
        return (NATS,), f"{SWITCH}=0"
    if not _nats_2_10().exists() and not _installers():
        return (NATS,), "it needs uv or pip"
    return (NATS, NATS_2_10), None


def redis_of_newer_debian(flavour: str) -> Sequence[str]:
    """The command that starts a Redis or Valkey of the newer Debian, installed if missing.

    Its own loader finds its own libraries: no chroot, so it writes where every other server of the tests does.
    """
    package = OF_NEWER_DEBIAN[flavour]
    root = newer_debian(package)
    (libraries,) = (root / "usr/lib").glob("*-linux-gnu*")
    (loader,) = libraries.glob("ld-linux*.so.*")
    return [str(loader), "--library-path", str(libraries), str(root / "usr/bin" / package)]


def nats_2_10() -> Path:
    """The oldest NATS server that we support, installed when it is missing.

    RuntimeError says why it cannot be.
    """
    program = _nats_2_10()
    with locked(NATS_2_10):
        if not program.exists():
            _install(program.parents[1])
    return program


def _nats_2_10() -> Path:
    return cache_directory() / NATS_2_10 / "bin" / "nats-server"


def _install(folder: Path) -> None:
    building = folder.with_name(f"{folder.name}.building")
    failures = []
    for installer in _installers():
        shutil.rmtree(building, ignore_errors=True)
        options = ("--quiet", "--no-deps", "--require-hashes", "--target", str(building), "-r", str(PINNED))
        ran = subprocess.run(
            [*installer, "install", *options],
            env={"UV_SYSTEM_CERTS": "1", **os.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode == 0:
            shutil.rmtree(folder, ignore_errors=True)
            building.rename(folder)
            return
        failures.append(ran.stderr)
    raise RuntimeError(f"NATS 2.10 cannot be installed ({SWITCH}=0 leaves it out):\n" + "\n".join(failures))


def _installers() -> Sequence[Sequence[str]]:
    """Ways to install a wheel, as `./just install` has them."""
    uv = ROOT / ".tools" / "bin" / "uv"
    python = ROOT / ".tools" / "python"
    found = [[str(uv), "pip"]] if uv.exists() else []
    with_pip = python.read_text().strip() if python.exists() else sys.executable
    return [*found, [with_pip, "-m", "pip"]]


def _switched_off() -> bool:
    return os.environ.get(SWITCH, "1") == "0"
