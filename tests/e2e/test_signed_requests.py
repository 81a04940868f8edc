"""Signed requests through real processes: forge-integration and `enqueue` sign, an orchestrator verifies."""

import asyncio
import itertools
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_common.settings import BrokerSettings
from solstice_common.signing.jws import sign
from solstice_common.topology import CANCELS, Route, full_topology, jobs_route
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.views import RunView
from tests.brokers import EMBEDDED
from tests.builders import job_cancel, job_request
from tests.e2e.webhook_calls import Sender, push, secrets
from tests.polling import wait_until_true
from tests.repositories import Repository
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.forks import run_command
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.rabbitmq import DEFAULT, RabbitMQServer
from tests.servers.service_process import base_environment
from tests.signing import KeyPair
from tests.traffic import WAIT_SECONDS, drain

JOBS: Final[Route] = jobs_route(BrokerSettings.model_construct())
RIGHTS: Final = ("--right", "trusted", "--right", "priority", "--right", "cancels")

pytestmark = [
    pytest.mark.parametrize("kind", [EMBEDDED, DEFAULT]),
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
]


class Line:
    """Both services on one broker, and what a person types beside them."""

    def __init__(self, directory: Path, amqp_url: str, stack: ExitStack) -> None:
        self.files = SharedFiles(directory=directory)
        self.amqp_url = amqp_url
        self.verify_keys = directory / "verify-keys.json"
        self._stack = stack
        self.repository = Repository(directory / "repository")
        self.commit = self.repository.commit(
            {".solstice/workflow.kdl": 'job "build" { step "say" run="true"; }'}
        )

    def key(self, name: str, *rights: str) -> Path:
        """Make a key by the command; returns the private one's file."""
        return Path(self.solstice("keys", "create", name, *rights).stdout.strip())

    def solstice(self, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **base_environment(),
            "SOLSTICE_HOME": str(self.files.directory),
            "AMQP_URL": self.amqp_url,
            "VERIFY_KEYS": str(self.verify_keys),
            **settings,
        }
        done = run_command("solstice", *words, env=environment)
        assert done.returncode == 0, done.stderr
        return done

    def enqueue(self, **settings: str) -> str:
        """Ask for the commit; returns the request's id."""
        enqueued = self.solstice(
            *("enqueue", "--repo-url", self.repository.url, "--commit-sha", self.commit, "--json"),
            **settings,
        )
        return str(json.loads(enqueued.stdout)["request_id"])

    async def forge(self, private: Path) -> ForgeProcess:
        return await asyncio.to_thread(
            self._stack.enter_context,
            forge_integration(self.files, AMQP_URL=self.amqp_url, SIGNING_KEYS=str(private), **secrets()),
        )

    async def orchestrator(self) -> OrchestratorProcess:
        return await asyncio.to_thread(
            self._stack.enter_context,
            orchestrator(
                self.files, AMQP_URL=self.amqp_url, VERIFY_KEYS=str(self.verify_keys), EXECUTOR="scripted"
            ),
        )

    async def runs(self) -> list[RunView]:
        async with open_store(self.files.database_url) as store:
            page = await store.runs(limit=500)
            runs = [*page.runs]
            while page.next is not None:
                page = await store.runs(limit=500, after=page.next)
                runs += page.runs
            return runs

    async def request_ids(self) -> set[str]:
        return {run.request_id for run in await self.runs()}

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        async with open_broker(self.amqp_url, name="raw") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(full_topology(BrokerSettings(amqp_url=self.amqp_url)))
            yield broker


@pytest.fixture
def line(kind: str, rabbitmq_servers: Callable[[str], RabbitMQServer], tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'broker.db'}"
        if kind != EMBEDDED:
            url = stack.enter_context(rabbitmq_servers(kind).vhost()).url
        yield Line(tmp_path, url, stack)


def message(route: Route, body: bytes, version: str, signature: str | None = None) -> Message:
    return Message(
        exchange=route.exchange,
        routing_key=route.routing_key,
        body=body,
        type=version,
        headers={} if signature is None else {"x-solstice-signature": signature},
    )


async def test_what_is_signed_is_built_and_what_is_not_is_a_dead_letter(line: Line) -> None:
    private = line.key("forge", *RIGHTS)
    await line.orchestrator()
    forge = await line.forge(private)
    call = push(Source.FORGEJO, line.repository.url, line.commit, now=time.time())
    async with httpx2.AsyncClient(base_url=forge.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        await (sender := Sender(client)).send([call])
    expected = {
        *sender.answers[0].request_ids,
        await asyncio.to_thread(line.enqueue, SIGNING_KEYS=str(private)),
    }
    await asyncio.to_thread(line.enqueue)
    stranger = KeyPair("stranger")
    request, cancel = job_request(repo_url=line.repository.url, commit_sha=line.commit), job_cancel()
    raw = [
        message(JOBS, request.encode(), JobRequestV1.VERSION),
        message(
            JOBS,
            request.encode(),
            JobRequestV1.VERSION,
            sign([request.encode()], JobRequestV1.VERSION, stranger.signing)[0],
        ),
        message(CANCELS, cancel.encode(), JobCancelV1.VERSION),
    ]
    async with line.broker() as broker:
        assert all(outcome.confirmed for outcome in await broker.publish(raw))
        dead = await drain(broker, JOBS.dlq, 3)
        (dead_cancel,) = await drain(broker, CANCELS.dlq, 1)
    assert Counter(each.headers["x-solstice-reason"] for each in dead) == {"unsigned": 2, "unknown_key": 1}
    assert dead_cancel.headers["x-solstice-reason"] == "unsigned"

    async def have_succeeded() -> bool:
        runs = await line.runs()
        return {run.request_id for run in runs if run.state == "succeeded"} >= expected

    await wait_until_true("both are built", have_succeeded)
    assert await line.request_ids() == expected


async def test_a_key_is_replaced_under_load_and_nothing_is_lost(line: Line) -> None:
    old = line.key("old", *RIGHTS)
    taker = await line.orchestrator()
    forge = await line.forge(old)
    enough = asyncio.Event()

    async def load(sender: Sender) -> None:
        numbers = itertools.count(1)
        while not enough.is_set():
            commits = [f"{next(numbers):040x}" for _ in range(12)]
            await sender.send(
                [push(Source.FORGEJO, line.repository.url, commit, now=time.time()) for commit in commits]
            )

    async with httpx2.AsyncClient(base_url=forge.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        sender = Sender(client)
        sending = asyncio.create_task(load(sender), name="load")
        await sender.answered(40)
        new = await asyncio.to_thread(line.key, "new", *RIGHTS)
        stolen = shutil.copy2(old, old.with_name("stolen.json"))
        new.replace(old)
        await sender.answered(len(sender.answers) + 80)
        enough.set()
        await sending
    expected = {request_id for answer in sender.answers for request_id in answer.request_ids}
    assert len(expected) == len(sender.answers)

    async def are_accepted() -> bool:
        return await line.request_ids() == expected

    await wait_until_true("every request is a run", are_accepted)
    await asyncio.to_thread(line.solstice, "keys", "revoke", "old")
    last = await asyncio.to_thread(line.enqueue, SIGNING_KEYS=str(old))
    expected.add(last)
    await wait_until_true("the new key signs on", are_accepted)
    await asyncio.to_thread(line.enqueue, SIGNING_KEYS=str(stolen))
    async with line.broker() as broker:
        (refused,) = await drain(broker, JOBS.dlq, 1)
        assert refused.headers["x-solstice-reason"] == "unknown_key"
        for queue in (JOBS.queue, JOBS.dlq):
            depth: Any = await broker.depth(queue)
            assert depth.ready == 0
    assert await line.request_ids() == expected
    used = await metrics(taker.url)
    assert used["old"] > 0
    assert used["new"] > 1
    assert sum(used.values()) == len(expected)


async def metrics(url: str) -> dict[str, float]:
    """How many messages each key had signed."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        text = (await client.get("/metrics")).text
    rows = [row for row in text.splitlines() if row.startswith("solstice_signed_messages_total{")]
    return {row.split('"')[1]: float(row.rpartition(" ")[2]) for row in rows}
