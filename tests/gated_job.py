"""Jobs that wait for the test, and their fate in a shared store.

Real orchestrators work on the store.
"""

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
from tests.servers.orchestrator import SharedFiles

WAIT_SECONDS = 90
SCRIPT = """\
echo attempt >> {record}
echo it runs
while [ ! -e {gate} ]; do sleep 0.05; done
echo it ends
"""


class GatedJob:
    """A repository whose job waits for a gate and records each start.

    `workflow` replaces the job's workflow; it has the places `{gate}` and `{record}`.
    """

    name: str | None = None
    """The name of the repository, to tell one from another."""

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


async def publish_requests(shared_files: SharedFiles, gated_job: GatedJob, count: int = 1) -> None:
    settings = BrokerSettings(amqp_url=shared_files.broker_url)
    route = jobs_route(settings)
    async with open_broker(shared_files.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        bodies = [
            job_request(
                repo_url=gated_job.repository.url,
                commit_sha=gated_job.commit,
                ref=None,
                **({"repo_full_name": gated_job.name} if gated_job.name else {}),
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


async def wait_for_jobs(store: JobStore, condition: Callable[[Sequence[JobView]], bool]) -> Sequence[JobView]:
    """Wait until the jobs are as expected; return them."""
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


async def wait_until_running(store: JobStore) -> JobView:
    """The only job, once it has written its first output."""
    (view,) = await wait_for_jobs(store, lambda views: [view.state for view in views] == [JobState.RUNNING])
    await wait_for_log(store, view.job_id, b"it runs")
    return view


async def wait_for_log(store: JobStore, job_id: str, words: bytes) -> None:
    """Wait until the log of the job has this text."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while words not in await read_log(store, job_id):
            changed.clear()
            try:
                async with asyncio.timeout(1):
                    await changed.wait()
            except TimeoutError:
                continue


async def read_log(store: JobStore, job_id: str) -> bytes:
    page = await store.log(job_id)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)


def all_ended(views: Sequence[JobView]) -> bool:
    return bool(views) and all(view.state.final for view in views)
