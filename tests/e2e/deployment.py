"""Both services as processes on one RabbitMQ, and what can be observed from outside."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx2

from solstice_common.broker import open_broker
from solstice_common.messages import JobStatusV1
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, Route, jobs_route
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import RunView
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import Vhost
from tests.servers.server import TLS
from tests.stores import all_runs
from tests.traffic import WAIT_SECONDS, drain

JOBS: Final[Route] = jobs_route(BrokerSettings.model_construct())

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Start what a test needs; everything ends with the deployment."""

    shared_files: SharedFiles
    vhost: Vhost
    amqp_url: str
    """By which the services reach it."""
    store: JobStore
    client: httpx2.AsyncClient
    """For forge-integration's address."""
    forge_port: int
    stack: ExitStack

    async def forge(self, **settings: str) -> ForgeProcess:
        """Another forge-integration at the same address, on the same inbox."""
        own_settings = {"AMQP_URL": self.amqp_url, "FORGE_PORT": str(self.forge_port)}
        return await self._started(forge_integration(self.shared_files, **{**own_settings, **settings}))

    async def orchestrator(self, **settings: str) -> OrchestratorProcess:
        """One more on the same store."""
        return await self._started(orchestrator(self.shared_files, **{"AMQP_URL": self.amqp_url, **settings}))

    async def _started(self, service: AbstractContextManager[P]) -> P:
        return await asyncio.to_thread(self.stack.enter_context, service)

    async def all_is_published(self) -> bool:
        """Whether forge-integration has nothing left to publish."""
        ready = (await self.client.get("/readyz")).json()
        return bool(ready["backlog"] == 0)

    async def statuses_are_published(self) -> bool:
        """Whether no status waits for its confirm any more."""
        # Read the file itself: a store that returns rows of the outbox becomes their publisher.
        database = self.shared_files.directory / "store.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            (waiting,) = connection.execute("SELECT count(*) FROM outbox").fetchone()
        return bool(waiting == 0)

    async def runs(self) -> list[RunView]:
        """All there are, newest first."""
        return await all_runs(self.store)

    async def have_ended(self, count: int) -> bool:
        """Whether there are so many runs, and all have come to their end."""
        runs = await self.runs()
        return len(runs) >= count and all(run.state.final for run in runs)

    async def depths(self) -> dict[str, int | None]:
        """How many messages wait in each queue; None for one that does not exist."""
        names = (JOBS.queue, JOBS.dlq, STATUSES.queue, STATUSES.dlq)
        async with open_broker(self.vhost.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            depths = {name: await broker.depth(name) for name in names}
        return {name: None if depth is None else depth.ready for name, depth in depths.items()}

    async def take_statuses(self) -> list[JobStatusV1]:
        """Take all statuses that wait in the queue, in order."""
        count = (await self.depths())[STATUSES.queue] or 0
        async with open_broker(self.vhost.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            deliveries = await drain(broker, STATUSES.queue, count) if count else []
        return [JobStatusV1.decode(message.body) for message in deliveries]


@asynccontextmanager
async def open_deployment(vhost: Vhost, directory: Path) -> AsyncIterator[Deployment]:
    """A deployment on `vhost` that keeps everything in `directory`, and of which nothing runs yet."""
    shared_files, (port,) = SharedFiles(directory=directory), free_ports(1)
    with ExitStack() as stack:
        async with (
            open_store(shared_files.database_url) as store,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS, trust_env=False, verify=TLS
            ) as client,
        ):
            yield Deployment(
                shared_files=shared_files,
                vhost=vhost,
                amqp_url=vhost.url,
                store=store,
                client=client,
                forge_port=port,
                stack=stack,
            )
