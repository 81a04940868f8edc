"""Which versions of the brokers tests run on.

What a version may change is tested on each: modules say so by `EVERY_VERSION = True`. Others run on the usual one.
Redis 8 and Valkey come from a newer Debian, the oldest NATS that we support from its wheel.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.servers.apt import cache_directory
from tests.servers.newer_debian import newer_debian
from tests.servers.newer_debian import why_not as why_no_newer_debian
from tests.servers.pinned_wheels import installers, pinned_wheels

SWITCH: Final = "SOLSTICE_TEST_MORE_VERSIONS"
REDIS: Final = "redis"
NATS: Final = "nats"
OF_NEWER_DEBIAN: Final = {"redis-8": "redis-server", "valkey": "valkey-server"}
"""Packages there; each has its program by the same name."""
NATS_2_10: Final = "nats-2.10"
_PROGRAM: Final = "bin/nats-server"
PINNED: Final = Path(__file__).with_name("requirements-nats-2.10.txt")


def needs_every_version(module: object) -> bool:
    """Whether the tests of a module run on each version.

    SWITCH=all says so of all modules.
    """
    return os.environ.get(SWITCH) == "all" or getattr(module, "EVERY_VERSION", False)


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
    if not _nats_2_10().exists() and not installers():
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

    RuntimeError says why it cannot be, and SWITCH=0 leaves it out.
    """
    return pinned_wheels(NATS_2_10, PINNED, f" ({SWITCH}=0 leaves it out)") / _PROGRAM


def _nats_2_10() -> Path:
    return cache_directory() / NATS_2_10 / _PROGRAM


def _switched_off() -> bool:
    return os.environ.get(SWITCH, "1") == "0"
