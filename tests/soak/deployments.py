"""The deployment that a soak loads.

It is one `solstice up`, or both services on a RabbitMQ and a PostgreSQL of their own.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from solstice_common.messages import Source
from tests.servers.forge_integration import FRESH_FORGE, forge_integration
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, SharedFiles, orchestrator
from tests.servers.postgresql import own_postgresql
from tests.servers.rabbitmq import DEFAULT, own_rabbitmq
from tests.servers.solstice_up import solstice_up
from tests.soak.verdict import events_of

SECRET: Final = "one-that-we-chose"
FORGE: Final = Source.FORGEJO
SLOTS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment that runs the jobs of webhooks."""

    webhooks: str
    """The URL of deliveries, without the forge's name."""
    secret: str
    api: str
    pids: Mapping[str, int]
    events: Callable[[], Mapping[str, list[dict[str, Any]]]]
    """The log of each service."""
    workspaces: Path


@contextmanager
def embedded(
    directory: Path, slots: int = SLOTS, python: Path | str = sys.executable
) -> Iterator[Deployment]:
    """`solstice up` of the checkout that this Python belongs to, without any settings."""
    home = directory / "home"
    arguments = ("--log-format", "json", "--capacity-map", f"linux={slots}")
    with solstice_up(home, *arguments, python=python, fresh=True) as up:
        secrets = json.loads((home / "webhook-secrets.json").read_text())
        yield Deployment(
            webhooks=up.webhooks,
            secret=secrets[FORGE.value],
            api=f"{up.page}/api/v1",
            pids={"solstice up": up.process.pid},
            events=lambda: {"solstice up": events_of((home / "up.log").read_text().splitlines())},
            workspaces=home / "workspaces",
        )


@contextmanager
def services(directory: Path) -> Iterator[Deployment]:
    """forge-integration and an orchestrator, with the leases of production."""
    shared_files = SharedFiles(directory=directory)
    with ExitStack() as stack:
        vhost = stack.enter_context(stack.enter_context(own_rabbitmq(DEFAULT)).vhost())
        database = stack.enter_context(stack.enter_context(own_postgresql()).database())
        forge = stack.enter_context(
            forge_integration(
                shared_files, start=FRESH_FORGE, AMQP_URL=vhost.url, FORGEJO_WEBHOOK_SECRET=SECRET
            )
        )
        runner = stack.enter_context(
            orchestrator(
                shared_files,
                start=FRESH_ORCHESTRATOR,
                AMQP_URL=vhost.url,
                DATABASE_URL=database.url,
                CAPACITY_MAP=f"linux={SLOTS}",
                LEASE_SECONDS="30",
                RENEW_SECONDS="10",
                RESCUE_SECONDS="10",
            )
        )
        yield Deployment(
            webhooks=f"{forge.url}/webhooks",
            secret=SECRET,
            api=f"{runner.url}/api/v1",
            pids={"forge-integration": forge.process.pid, "orchestrator": runner.process.pid},
            events=lambda: {"forge-integration": list(forge.events), "orchestrator": list(runner.events)},
            workspaces=shared_files.workspaces,
        )
        for service in (forge, runner):
            service.terminate()
            assert service.ended() == 0, service.events[-5:]
