"""Both services on a broker under faults, from the webhook to the forge's commit."""

import asyncio
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import httpx2

from solstice_common.broker import open_broker
from solstice_common.messages import Source
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, jobs_route
from solstice_orchestrator.store import JobStore, open_store
from tests.chaos.faults.audit import Report, audit
from tests.chaos.faults.brokers import BrokerUnderFaults
from tests.chaos.faults.schedule import Fault, Step
from tests.chaos.recording_orchestrator import SIMULATED_LABEL, START
from tests.e2e.webhook_calls import Sender, push, secrets
from tests.gated_jobs import GatedJobs
from tests.polling import wait_until_true
from tests.servers.forge_api import ForgeApi, forge_api
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.ports import free_ports
from tests.servers.service_process import ServiceProcess

JOBS_OF_A_PUSH: Final = 5
CONTEXTS: Final = ("solstice", *(f"solstice/build-{n}" for n in range(JOBS_OF_A_PUSH)))
WORKFLOW: Final = "\n".join(
    f'job "build-{n}" runs-on="{SIMULATED_LABEL}" {{ step "write" run="simulated"; }}'
    for n in range(JOBS_OF_A_PUSH)
)
QUEUES: Final = (jobs_route(BrokerSettings.model_construct()).queue, STATUSES.queue)
WAIT_SECONDS: Final = 60

S = TypeVar("S", bound=ServiceProcess)


@dataclass(kw_only=True)
class Line:
    """The services, and the requests that they accepted."""

    broker: BrokerUnderFaults
    forge: ForgeApi
    shared_files: SharedFiles
    gated_jobs: GatedJobs
    store: JobStore
    client: httpx2.AsyncClient
    forge_port: int
    config: Path
    stack: ExitStack
    sender: Sender
    settings: dict[str, str] = field(default_factory=dict)
    """Of both services, beside their own; a service has those with which it was started."""
    names: Iterator[int] = field(default_factory=itertools.count)
    receiving: ForgeProcess | None = None
    orchestrators: list[OrchestratorProcess] = field(default_factory=list)
    """The running orchestrators."""
    services: list[ServiceProcess] = field(default_factory=list)
    """All services that were started."""

    @property
    def promised(self) -> dict[str, str]:
        """Commits by the request ids of answered webhooks."""
        return {
            request_id: answer.call.commit
            for answer in self.sender.answers
            for request_id in answer.request_ids
        }

    async def run(self, steps: Sequence[Step], pushes: int) -> Report:
        """Send pushes while the faults happen, wait for all promised, and audit them."""
        repository, commits = self.gated_jobs.repository(
            "anvil", {".solstice/workflow.kdl": WORKFLOW}, commits=pushes
        )
        calls = [push(Source.FORGEJO, repository.url, commit, now=time.time()) for commit in commits]
        sender = self.sender
        for number, step in enumerate(steps):
            part = calls[number :: len(steps)]
            # Each third comes twice, as forges send what was answered too late.
            part += part[::3]
            before = len(sender.answers)
            sending = asyncio.create_task(sender.send(part), name="webhooks")
            await sender.answered(before + int(step.share * len(part)))
            await self.inject(step, sending)
            await sending
        await wait_until_true("all that was promised is done and shown", self.is_over)
        return await self.audit()

    async def inject(self, step: Step, sending: "asyncio.Task[None]") -> None:
        """Let the fault happen."""
        match step.fault:
            case Fault.KILL_FORGE:
                assert self.receiving is not None
                await asyncio.to_thread(self.receiving.kill)
                await self.start_forge()
            case Fault.KILL_ORCHESTRATOR:
                await asyncio.to_thread(self.orchestrators.pop(0).kill)
                await self.start_orchestrator()
            case Fault.FREEZE_ORCHESTRATOR:
                frozen = self.orchestrators[0]
                await asyncio.to_thread(frozen.freeze_between_writes, self.shared_files)
                await asyncio.sleep(step.seconds)
                frozen.thaw()
            case Fault.DELETE_QUEUE:
                # A deleted queue loses its messages by design, so it is deleted while it is empty and stays
                # so.
                await sending
                await wait_until_true("all that was promised so far is done and shown", self.is_over)
                await wait_until_true("nothing waits in the broker", self._is_drained)
                for queue in QUEUES:
                    await self.broker.delete_queue(queue)
            case _:
                await self.broker.inject(step)

    async def start_forge(self) -> None:
        """Start forge-integration, at the same address."""
        self.receiving = await self._started(
            forge_integration(
                self.shared_files,
                AMQP_URL=self.broker.url,
                FORGE_PORT=str(self.forge_port),
                FORGE_CONFIG=str(self.config),
                **secrets(),
                **self.settings,
            )
        )

    async def start_orchestrator(self) -> None:
        """Start one more orchestrator."""
        self.orchestrators.append(
            await self._started(
                orchestrator(
                    self.shared_files,
                    start=START,
                    AMQP_URL=self.broker.url,
                    WORKER_NAME=f"worker-{next(self.names)}",
                    RECORDING_DIRECTORY=str(self.gated_jobs.directory),
                    SKEW_SECONDS="0",
                    PUBLIC_URL="https://ci.example",
                    CAPACITY_MAP=f"{SIMULATED_LABEL}=16",
                    **self.settings,
                )
            )
        )

    def write_warnings(self) -> None:
        """Write the services' warnings; pytest shows them when a test has failed."""
        for process in self.services:
            for event in process.events:
                if event.get("level") not in {"info", "debug"}:
                    sys.stdout.write(f"{event}\n")

    async def audit(self) -> Report:
        """Compare the accepted requests with the store, the records of the jobs, and the forge."""
        runs = list((page := await self.store.runs(limit=500)).runs)
        while page.next is not None:
            page = await self.store.runs(limit=500, after=page.next)
            runs += page.runs
        jobs = [job for run in runs for job in await self.store.jobs(run_id=run.run_id, limit=500)]
        return audit(
            self.promised,
            runs,
            jobs,
            {job.job_id: await self.store.attempts(job.job_id) for job in jobs},
            self.gated_jobs.records(),
            self._shown(),
            CONTEXTS,
        )

    async def is_over(self) -> bool:
        """Whether all that was promised is done and shown."""
        shown = self._shown()
        if any(
            shown.get(commit, {}).get(context) not in {"success", "failure", "error"}
            for commit in self.promised.values()
            for context in CONTEXTS
        ):
            return False
        counts = await self.store.counts()
        return all(state.final for state, _ in counts if counts[state, _])

    async def is_published(self) -> bool:
        """Whether the broker has confirmed all that forge-integration took."""
        return not (await self.client.get("/readyz")).json()["backlog"]

    async def _is_drained(self) -> bool:
        if not await self.is_published():
            return False
        async with open_broker(self.broker.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            depths = [await broker.depth(queue) for queue in QUEUES]
        return all(depth is not None and not depth.ready for depth in depths)

    def _shown(self) -> Mapping[str, Mapping[str, str]]:
        shown: dict[str, dict[str, str]] = defaultdict(dict)
        for (_, commit, context), status in self.forge.shown.items():
            shown[commit][context] = status["state"]
        return shown

    async def _started(self, service: AbstractContextManager[S]) -> S:
        started = await asyncio.to_thread(self.stack.enter_context, service)
        self.services.append(started)
        return started


@asynccontextmanager
async def open_line(
    starting: AbstractAsyncContextManager[BrokerUnderFaults], directory: Path, *, rules: str = ""
) -> AsyncIterator[Line]:
    """Both services on that broker, with these rules; all end with the block."""
    shared_files, (port,) = SharedFiles(directory=directory), free_ports(1)
    async with AsyncExitStack() as outer:
        broker = await outer.enter_async_context(starting)
        forge = await outer.enter_async_context(forge_api(Source.FORGEJO))
        config = directory / "sources.toml"
        config.write_text(
            f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\n'
            f'secrets = ["env:FORGEJO_WEBHOOK_SECRET"]\ntoken = "plain:{forge.token}"\n{rules}'
        )
        stack = outer.enter_context(ExitStack())
        client = await outer.enter_async_context(
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS, trust_env=False)
        )
        line = Line(
            broker=broker,
            forge=forge,
            shared_files=shared_files,
            gated_jobs=GatedJobs(directory=directory),
            store=await outer.enter_async_context(open_store(shared_files.database_url)),
            client=client,
            forge_port=port,
            config=config,
            stack=stack,
            sender=Sender(client),
        )
        await line.start_forge()
        await line.start_orchestrator()
        await line.start_orchestrator()
        try:
            yield line
        finally:
            line.write_warnings()
