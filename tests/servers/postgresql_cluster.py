"""A private PostgreSQL cluster, which ends with the test run that started it.

It has its own port and temporary directory.

Source: postgresql.org/docs/current/app-initdb.html, .../server-shutdown.html, .../non-durability.html.
"""

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.servers.guarded_process import GuardedProcess
from tests.servers.ports import free_ports
from tests.servers.postgresql_server import PostgreSQLServer
from tests.servers.scratch import scratch_folder

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "log_min_messages": "warning",
    # In the directory that goes away, rather than beside it, where a killed server would leave it.
    "dynamic_shared_memory_type": "mmap",
    "autovacuum_naptime": "10s",
}
UNSYNCED: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}
"""The settings of an unsynced cluster.

Data survive the death of the server, not of the machine; what was committed is written (synchronous_commit is on).
"""


class PostgreSQLCluster(PostgreSQLServer):
    """A cluster of the programs in `programs` for us alone; open it with `with`.

    `synced` makes every commit wait for the disk, as in production; `settings` are further lines of its
    configuration.
    """

    def __init__(
        self, programs: Path, *, synced: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self._programs = programs
        self.directory = scratch_folder("postgresql", synced=synced)
        self._data = self.directory / "data"
        self._settings = {**SETTINGS, **({} if synced else UNSYNCED), **(settings or {})}
        (self._port,) = free_ports(1)
        self._password = secrets.token_hex(16)
        self._process = GuardedProcess("PostgreSQL", self.directory)
        super().__init__(f"postgresql://tester:{self._password}@127.0.0.1:{self._port}/postgres")

    def start(self) -> None:
        """Make the cluster and start it, where necessary; return when it answers."""
        if self._process.runs:
            return
        if not self._data.exists():
            self._make()
        self._process.start(self._server(), environment=_environment(), answers=self.answers)

    def stop(self) -> None:
        # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for every client to leave.
        self._process.end(b"interrupt\n")

    def kill(self) -> None:
        self._process.end(b"kill\n")

    def close(self) -> None:
        """Stop it and remove everything it wrote."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self) -> None:
        secret = self.directory / "password"
        secret.write_text(self._password)
        user = _user()
        if user is not None:
            for path in (self.directory, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        made = subprocess.run(
            _as_user(
                str(self._programs / "initdb"),
                f"--pgdata={self._data}",
                "--username=tester",
                f"--pwfile={secret}",
                # This saves one key derivation per connection; the network is this machine's own.
                "--auth=password",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "--no-instructions",
            ),
            env=_environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed ({made.returncode}):\n{made.stdout}{made.stderr}")

    def _server(self) -> Sequence[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return _as_user(
            str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self._port), *settings
        )


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _user() -> pwd.struct_passwd | None:
    """The user of the server: ours, but never root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _as_user(*command: str) -> Sequence[str]:
    user = _user()
    if user is None:
        return command
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *identity, *command]
