"""Good jobs beside git hosts that refuse, fail, or never answer, on a real orchestrator: who waits for whom."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from solstice_common.broker import Message, open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.store import open_store
from solstice_orchestrator.workers import WorkerState
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.git_servers import answering, http_server
from tests.servers.orchestrator import Place, orchestrator

GOOD, BAD = 40, 12
WAIT_SECONDS = 120


async def publish(place: Place, requests: list[bytes]) -> None:
    settings = BrokerSettings(amqp_url=place.broker_url)
    route = jobs_route(settings)
    async with open_broker(place.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        await broker.publish(
            [
                Message(
                    exchange=route.exchange, routing_key=route.routing_key, body=body, type="jobrequest.v1"
                )
                for body in requests
            ]
        )


async def seconds_for_good(directory: Path, bad_port: int | None, *, answers: bool = True) -> float:
    """How long the good jobs take; beside those of a host that does not work, if there is one."""
    place, repository = Place(directory=directory), Repository(directory / "good")
    sha = repository.commit({".solstice/job.sh": "true"})
    good = [job_request(repo_url=repository.url, commit_sha=sha, ref=None).encode() for _ in range(GOOD)]
    bad = [
        job_request(
            repo_url=f"http://127.0.0.1:{bad_port}/{number}", repo_full_name=f"bad/{number}", ref=None
        ).encode()
        for number in range(BAD if bad_port else 0)
    ]
    async with open_store(place.database_url, lease_seconds=3) as store:
        with orchestrator(place, GIT_PROTOCOLS="file,http", GOVERNOR="off") as process:
            begun = time.monotonic()
            await publish(place, bad + good)
            async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
                while True:
                    changed.clear()
                    runs = (await store.runs(limit=100)).runs
                    if sum(run.state is RunState.SUCCEEDED for run in runs) == GOOD:
                        break
                    await changed.wait()
            took = time.monotonic() - begun
            if bad_port:
                (worker,) = await store.workers()
                assert (worker.state, worker.shrunk_to) == (WorkerState.ACTIVE, None)
            if bad_port and answers:
                away = await asyncio.to_thread(process.logged, "git_host.away")
                assert away["host"] == f"127.0.0.1:{bad_port}"
    return took


@pytest.mark.parametrize("kind", ["refuses", "fails", "silent"])
async def test_good_jobs_keep_their_rate_beside_a_bad_host(tmp_path: Path, kind: str) -> None:
    without = await seconds_for_good(tmp_path / "alone", None)
    if kind == "fails":
        with http_server(answering(500)) as port:
            beside = await seconds_for_good(tmp_path / "beside", port)
    else:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            if kind == "silent":
                server.listen(128)
            beside = await seconds_for_good(
                tmp_path / "beside", server.getsockname()[1], answers=kind != "silent"
            )
    print(f"{GOOD} good jobs: {without:.1f} s alone, {beside:.1f} s beside a host that {kind}")  # noqa: T201  the figures
    # On a busy machine twice as long says nothing; a host that held places or slots would cost half a minute.
    assert beside < 2 * without + 10
