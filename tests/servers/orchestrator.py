"""Runs `orchestrator run` as a real process.

By default it has an embedded broker, a SQLite store, and short leases.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.service_process import ServiceProcess, base_environment, service_process

START = "from solstice_orchestrator.cli import main; main()"
FRESH_ORCHESTRATOR = f"pass; {START}"
"""The same in a process that has imported nothing else, for tests that measure its memory."""
TRIES = 100
PAUSE_SECONDS = 0.05
LEASE_SECONDS = 3


def locked(database: Path) -> bool:
    """Whether a process is writing to that SQLite file."""
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


@dataclass(frozen=True, kw_only=True)
class SharedFiles:
    """The files that the services of one test share."""

    directory: Path

    @property
    def broker_url(self) -> str:
        return f"sqlite:///{self.directory / 'broker.db'}"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.directory / 'store.db'}"

    @property
    def workspaces(self) -> Path:
        return self.directory / "workspaces"

    def environment(self, **settings: str) -> dict[str, str]:
        return {
            **base_environment(),
            "AMQP_URL": self.broker_url,
            "DATABASE_URL": self.database_url,
            "WORKSPACES": str(self.workspaces),
            "SOLSTICE_TOKENS": str(self.directory / "tokens.json"),
            "ORCHESTRATOR_PORT": "0",
            "GIT_PROTOCOLS": "file",
            "GIT_ALLOW_PRIVATE": "true",
            "CAPACITY_MAP": "linux=4",
            "LEASE_SECONDS": str(LEASE_SECONDS),
            "RENEW_SECONDS": "1",
            "RESCUE_SECONDS": "0.5",
            "RETRY_BASE_SECONDS": "0.1",
            "LINE_REPORT_SECONDS": "0",
            **settings,
        }


class OrchestratorProcess(ServiceProcess):
    """A running orchestrator."""

    def freeze_between_writes(self, shared_files: SharedFiles) -> None:
        """Freeze it where it holds no lock of SQLite.

        Otherwise other processes would wait for the lock forever.
        """
        databases = [shared_files.directory / "broker.db", shared_files.directory / "store.db"]
        for _ in range(TRIES):
            self.freeze()
            if not any(locked(database) for database in databases):
                return
            self.thaw()
            time.sleep(PAUSE_SECONDS)
        raise AssertionError(f"it never held none of {databases}")

    @property
    def url(self) -> str:
        return str(self.logged("orchestrator.started")["url"])

    @property
    def worker_id(self) -> str:
        return str(self.logged("orchestrator.started")["worker_id"])


@contextmanager
def orchestrator(
    shared_files: SharedFiles, *, start: str = START, before: Sequence[str] = (), **settings: str
) -> Iterator[OrchestratorProcess]:
    """A ready orchestrator, killed afterwards if it still runs."""
    with service_process(
        OrchestratorProcess,
        start,
        "run",
        environment=shared_files.environment(**settings),
        started="orchestrator.started",
        before=before,
    ) as running:
        yield running
