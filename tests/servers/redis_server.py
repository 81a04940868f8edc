"""The private Redis or Valkey that the tests run against."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.apt import apt_can_install, apt_install
from tests.servers.ports import free_ports
from tests.servers.scratch import scratch_folder
from tests.servers.server import Server
from tests.servers.versions import REDIS, redis_of_newer_debian

START_SECONDS: Final = 20.0
DURABLE: Final[Mapping[str, str]] = {"appendonly": "yes", "appendfsync": "always", "save": ""}
NOTHING_FOUND: Final = """\
These tests need a Redis or Valkey, and there is none here. Any one of these will do:
  - `apt-get install redis-server`, `dnf install valkey` or `brew install redis`, so that `redis-server` or
    `valkey-server` is on PATH; it needs no running service;
  - on Debian or Ubuntu: run the tests as root, and they install the package themselves."""


class RedisServer(Server):
    """A server of our own on loopback, durable unless `settings` say otherwise."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, flavour: str = REDIS, synced: bool = False
    ) -> None:
        self._program = [redis_program()] if flavour == REDIS else redis_of_newer_debian(flavour)
        self._settings = {**DURABLE, **(settings or {})}
        self._folder = scratch_folder("redis", synced=synced)
        (self.port,) = free_ports(1)
        self._process: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, **options: Any) -> "redis.Redis":
        """A plain client, which sends nothing twice."""
        return redis.Redis(
            host="127.0.0.1", port=self.port, retry=Retry(NoBackoff(), 0), protocol=2, **options
        )

    def fresh_url(self) -> str:
        """The URL of the server, emptied."""
        with self.client() as client:
            client.flushall()
        return self.url

    def start(self) -> None:
        settings = [word for name, value in self._settings.items() for word in (f"--{name}", value)]
        command = [
            *self._program,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self._folder),
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = Popen([*command, *settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        self._ended()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._ended()

    def freeze(self) -> None:
        """Stop the server without its knowledge (SIGSTOP)."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with self.client(socket_connect_timeout=1, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait(START_SECONDS)


def redis_program() -> str:
    """The server's program, installed by us when we are root.

    RuntimeError says what to install.
    """
    found = _installed()
    if found is None and apt_can_install():
        apt_install("redis-server")
        found = _installed()
    if found is None:
        raise RuntimeError(NOTHING_FOUND)
    return str(found)


def _installed() -> Path | None:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    return None
