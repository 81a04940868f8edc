"""`orchestrator run` as a real process, by default on an embedded broker, on a SQLite store, with short leases."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.service_process import ServiceProcess, kept_environment, service_process

START = "from solstice_orchestrator.cli import main; main()"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the services of one test share."""

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
            **kept_environment(),
            "AMQP_URL": self.broker_url,
            "DATABASE_URL": self.database_url,
            "WORKSPACES": str(self.workspaces),
            "ORCHESTRATOR_PORT": "0",
            "GIT_PROTOCOLS": "file",
            "CAPACITY_MAP": "linux=4",
            "LEASE_SECONDS": "3",
            "RENEW_SECONDS": "1",
            "RESCUE_SECONDS": "0.5",
            "RETRY_BASE_SECONDS": "0.1",
            **settings,
        }


class OrchestratorProcess(ServiceProcess):
    """A running orchestrator."""

    @property
    def url(self) -> str:
        return str(self.logged("orchestrator.started")["url"])

    @property
    def worker_id(self) -> str:
        return str(self.logged("orchestrator.started")["worker_id"])


@contextmanager
def orchestrator(place: Place, **settings: str) -> Iterator[OrchestratorProcess]:
    """A ready orchestrator; killed afterwards if it still runs."""
    with service_process(
        OrchestratorProcess,
        START,
        "run",
        environment=place.environment(**settings),
        started="orchestrator.started",
    ) as running:
        yield running
