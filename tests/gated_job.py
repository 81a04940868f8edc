"""Jobs that wait for the test, and what becomes of them in a store that real orchestrators work on."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from solstice_common.broker import Message, open_broker
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.views import JobView
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.orchestrator import Place

WAIT_SECONDS = 90
SCRIPT = """\
echo attempt >> {record}
echo it runs
while [ ! -e {gate} ]; do sleep 0.05; done
echo it ends
"""


class Yard:
    """A repository whose job runs until the gate is opened, and writes down how often it was begun.

    `workflow` is what it does instead, with the places `{gate}` and `{record}`.
    """

    name: str | None = None
    """Of the repository, for those who tell one from another by it."""

    def __init__(self, directory: Path, workflow: str = "") -> None:
        self.gate, self.record = directory / "gate", directory / "record"
        self.repository = Repository(directory / "repository")
        name = ".solstice/workflow.kdl" if workflow else ".solstice/job.sh"
        text = (workflow or SCRIPT).replace("{gate}", str(self.gate)).replace("{record}", str(self.record))
        self.commit = self.repository.commit({name: text})

    def open_gate(self) -> None:
        self.gate.touch()

    @property
    def begun(self) -> int:
        return len(self.record.read_text().splitlines())


async def ask_for(place: Place, yard: Yard, count: int = 1) -> None:
    settings = BrokerSettings(amqp_url=place.broker_url)
    route = jobs_route(settings)
    async with open_broker(place.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        bodies = [
            job_request(
                repo_url=yard.repository.url,
                commit_sha=yard.commit,
                ref=None,
                **({"repo_full_name": yard.name} if yard.name else {}),
            ).encode()
            for _ in range(count)
        ]
        outcomes = await broker.publish(
            [
                Message(
                    exchange=route.exchange, routing_key=route.routing_key, body=body, type="jobrequest.v1"
                )
                for body in bodies
            ]
        )
        assert all(outcome.confirmed for outcome in outcomes)


async def jobs_become(store: JobStore, condition: Callable[[Sequence[JobView]], bool]) -> Sequence[JobView]:
    """The jobs, as soon as they are as wanted."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            changed.clear()
            views = await store.jobs(limit=100)
            if condition(views):
                return views
            try:
                async with asyncio.timeout(1):
                    await changed.wait()
            except TimeoutError:
                continue


async def job_runs(store: JobStore) -> JobView:
    """The only job, once it has written its first words."""
    (view,) = await jobs_become(store, lambda views: [view.state for view in views] == [JobState.RUNNING])
    await log_says(store, view.job_id, b"it runs")
    return view


async def log_says(store: JobStore, job_id: str, words: bytes) -> None:
    """Wait until the log of the job has these words."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while words not in await log_of(store, job_id):
            changed.clear()
            try:
                async with asyncio.timeout(1):
                    await changed.wait()
            except TimeoutError:
                continue


async def log_of(store: JobStore, job_id: str) -> bytes:
    page = await store.log(job_id)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)


def ended(views: Sequence[JobView]) -> bool:
    return bool(views) and all(view.state.final for view in views)
