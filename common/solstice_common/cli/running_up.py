"""Stores the addresses of the running `solstice up` of this machine in a file.

`solstice up` writes the file once it is ready and holds a lock on `up.lock` beside it for as long as it lives. The file
counts only while the lock is held: a killed process leaves the file, but no lock.
"""

import contextlib
import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from solstice_common.errors import ConfigurationError
from solstice_common.settings import is_memory, sqlite_path, state_directory

LOCK_NAME: Final = "up.lock"
FILE_NAME: Final = "up.json"
FOUND: Final[Mapping[str, str]] = {
    "amqp_url": "broker",
    "forge_inbox_url": "inbox",
    "database_url": "store",
    "solstice_url": "page",
}
"""Settings that commands take from the running `solstice up`, by its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUp:
    """The addresses of a running `solstice up`.

    None for a URL with a password, which no file may hold.
    """

    pid: int
    page: str
    webhooks: str
    broker: str | None
    inbox: str | None
    store: str | None
    forge_config: str = ""
    """The file of its sources; empty: every forge, with generated secrets, and no rules."""

    def setting(self, name: str) -> str:
        """Return the value of a setting of `FOUND`.

        ConfigurationError when its URL has a password, or names the memory of that process.
        """
        value: str | None = getattr(self, FOUND[name])
        if value is None:
            raise ConfigurationError(
                f"{name.upper()}: 'solstice up' (process {self.pid}) uses a URL with a password, which it writes nowhere: "
                f"give {name.upper()} here too"
            )
        if is_memory(value):
            part = FOUND[name]
            raise ConfigurationError(
                f"{name.upper()}: 'solstice up' (process {self.pid}) has its {part} in its own memory, which no other process "
                f"can open: start it without --{part} memory:, or ask it over HTTP ('solstice webhook send', the page {self.page})"
            )
        return value


def shareable(url: str) -> str | None:
    """Return the URL as any working directory understands it; None when it has a password."""
    if url.startswith("sqlite:"):
        return f"sqlite:///{sqlite_path(url).absolute()}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    # A '#', '/' or '?' in a password ends the host too early: the '@' then stands behind it.
    odd = "@" in parts.path + parts.query + parts.fragment
    # A user without a password before the host of a NATS server is a token.
    options = dict(parse_qsl(parts.query))
    is_token = parts.scheme in {"nats", "tls"} and parts.username is not None
    odd = odd or (is_token and "password_file" not in options)
    # PostgreSQL has an option for the password of a key, too (sslpassword).
    odd = odd or any("password" in name for name in options.keys() - {"password_file"})
    return None if parts.password or odd else url


def reachable(url: str) -> str:
    """The URL for a program of this machine. A wildcard address becomes the loopback one."""
    return url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def write(state: Path, running: RunningUp) -> None:
    """Write the file for its owner alone, whole or not at all."""
    fresh = state / f"{FILE_NAME}.{running.pid}"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(asdict(running), option=orjson.OPT_INDENT_2))
    fresh.replace(state / FILE_NAME)


def remove(state: Path) -> None:
    """Remove the file, if it exists; only the holder of the lock may do so."""
    with contextlib.suppress(OSError):
        (state / FILE_NAME).unlink(missing_ok=True)


def read() -> RunningUp | None:
    """Return the addresses of the `solstice up` that runs with this state directory.

    None when none runs, or it is not ready yet.
    """
    state = state_directory()
    if not is_locked(state / LOCK_NAME):
        return None
    try:
        return RunningUp(**orjson.loads((state / FILE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_locked(lock: Path) -> bool:
    """Whether a process holds the lock of this file; no file is no lock."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, so that commands do not block each other; a starting `up` retries for a moment.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
