"""`forge-integration serve` as a real process."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.orchestrator import Place
from tests.servers.service_process import ServiceProcess, kept_environment, service_process

START = "from solstice_forge.cli import main; main()"


class ForgeProcess(ServiceProcess):
    """A running forge-integration."""

    @property
    def url(self) -> str:
        started = self.logged("forge.started")
        return f"http://{started['host']}:{started['port']}"


@contextmanager
def forge_integration(place: Place, *, start: str = START, **settings: str) -> Iterator[ForgeProcess]:
    """A forge-integration that listens; killed afterwards if it still runs."""
    environment = {
        **kept_environment(),
        "AMQP_URL": place.broker_url,
        "FORGE_PORT": "0",
        "SOLSTICE_TOKENS": str(place.directory / "tokens.json"),
        "FORGE_INBOX_URL": f"sqlite:///{place.directory / 'inbox.db'}",
        **settings,
    }
    with service_process(
        ForgeProcess, start, "serve", environment=environment, started="forge.started"
    ) as running:
        yield running
