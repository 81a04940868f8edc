"""Runs `forge-integration serve` as a real process."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.orchestrator import SharedFiles
from tests.servers.service_process import ServiceProcess, base_environment, service_process

START = "from solstice_forge.cli import main; main()"
FRESH_FORGE = f"pass; {START}"
"""The same in a process that has imported nothing else, for tests that measure its memory."""


class ForgeProcess(ServiceProcess):
    """A running forge-integration."""

    @property
    def url(self) -> str:
        started = self.logged("forge.started")
        return f"http://{started['host']}:{started['port']}"


@contextmanager
def forge_integration(
    shared_files: SharedFiles, *, start: str = START, **settings: str
) -> Iterator[ForgeProcess]:
    """A forge-integration that listens, killed afterwards if it still runs."""
    environment = {
        **base_environment(),
        "AMQP_URL": shared_files.broker_url,
        "FORGE_PORT": "0",
        "SOLSTICE_TOKENS": str(shared_files.directory / "tokens.json"),
        "FORGE_INBOX_URL": f"sqlite:///{shared_files.directory / 'inbox.db'}",
        **settings,
    }
    with service_process(
        ForgeProcess, start, "serve", environment=environment, started="forge.started"
    ) as running:
        yield running
