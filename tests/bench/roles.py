"""The processes of the whole path, each with its own interpreter.

In production it is the same.

`python -m tests.bench.roles ROLE JSON`: prints one JSON line when it is ready and one when it is done. Times are of the
system-wide monotonic clock, so that the lines of several processes can be compared.
"""

import asyncio
import functools
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import uvicorn
import uvloop
from pydantic import SecretStr

from solstice_common.broker import open_broker
from solstice_common.messages import Priority
from solstice_common.runtime.process import tune_garbage_collection
from solstice_common.signing.key_file import KeyFile, read_public
from solstice_common.storage.postgresql_connections import PREFER_INDEXES, SESSION
from solstice_common.telemetry.logs import configure_logs
from solstice_common.topology import QueueType
from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.store import JobStore, open_store
from tests.bench import claiming, load, yardsticks
from tests.bench.routes import route_named
from tests.bench.servers import plain_client

PREFETCH = 256
RETENTION_SECONDS = 90 * 86_400.0
"""As by the default of RETENTION_DAYS."""


def print_facts(**facts: Any) -> None:
    """Print one line for the parent."""
    print(json.dumps(facts), flush=True)  # noqa: T201  the pipe to the parent


async def naive_app(url: str, name: str, port: int) -> None:
    """The yardstick's webhook receiver; ends with its parent."""
    app = yardsticks.naive_app(url, name, "jobrequest.v1", load.SECRET.encode())
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(), name="naive-app")
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    print_facts(ready=True)
    await serving


async def naive_consumer(url: str, name: str, database: str, count: int) -> None:
    """The yardstick's consumer, until it has handed over `count` jobs."""
    print_facts(ready=True)
    await yardsticks.naive_consumer(url, name, Path(database), count, PREFETCH)
    print_facts(done_at=time.monotonic(), cpu_seconds=time.process_time())


async def plain_consumer(url: str, name: str, count: int) -> None:
    """The plain client: consume and ack each."""
    print_facts(ready=True)
    began = time.monotonic()
    await plain_client(url).consume(url, name, count, PREFETCH)
    print_facts(began_at=began, done_at=time.monotonic())


async def receiver(url: str, name: str, database: str, port: int, signing_keys: str = "") -> None:
    """forge-integration as it is; ends with its parent."""
    route = route_named(name)
    settings = ForgeSettings(
        amqp_url=url,
        amqp_exchange=route.exchange,
        amqp_queue=route.queue,
        amqp_dlx=route.dlx,
        amqp_dlq=route.dlq,
        forge_port=port,
        forge_inbox_url=f"sqlite:///{database}",
        forgejo_webhook_secret=SecretStr(load.SECRET),
        signing_keys=SecretStr(signing_keys),
    )
    await serve(
        settings, stop=asyncio.Event(), listening=lambda _host, port: print_facts(ready=True, port=port)
    )


async def consumer(url: str, name: str, database: str, count: int) -> None:
    """Our intake on a SQLite store, until `count` requests are stored and acked."""
    admitted = Admissions(count)
    async with taking(url, name, database, admitted):
        began = time.monotonic()
        await admitted.complete.wait()
        print_facts(began_at=began, done_at=time.monotonic())


async def line_end(url: str, name: str, database: str, count: int, verify_keys: str = "") -> None:
    """The same, with each run handed to the next stage, signed if there are keys."""
    async with taking(url, name, database, Metrics(), verify_keys) as store:
        await handed_over(store, count)
        print_facts(done_at=time.monotonic(), cpu_seconds=time.process_time())


class Admissions(Metrics):
    """Metrics that signal when so many requests were admitted.

    They are counted when their acks are next.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count
        self.complete = asyncio.Event()

    def requests_admitted(self, count: int = 1, priority: Priority = Priority.DEFAULT) -> None:
        super().requests_admitted(count, priority)
        self._left -= count
        if self._left <= 0:
            self.complete.set()


@asynccontextmanager
async def taking(
    url: str, name: str, database: str, metrics: Metrics, verify_keys: str = ""
) -> AsyncIterator[JobStore]:
    """An intake at work, and its store."""
    route, topology = route_named(name), route_named(name).topology(QueueType.QUORUM)
    async with (
        open_store(f"sqlite:///{database}") as store,
        open_broker(url, name="bench-intake") as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.ready(10)
        await broker.declare(topology)
        tune_garbage_collection()  # as the daemon does
        print_facts(ready=True)
        signatures = None
        if verify_keys:
            keys = KeyFile(Path(verify_keys), read_public)
            signatures = SignatureRules(keys=keys, v1_trust=V1_TRUST, max_age_seconds=RETENTION_SECONDS)
        intake = Intake(
            broker=broker, store=store, metrics=metrics, rng=random.Random(0), signatures=signatures
        )
        task = tasks.create_task(intake.run(route, topology, prefetch=PREFETCH), name="bench-intake")
        yield store
        task.cancel()


async def handed_over(store: JobStore, count: int) -> None:
    """Claim every run for planning, as the orchestrator does, and drop it."""
    left = count
    async with store.changes() as changed:
        while left > 0:
            changed.clear()
            claimed = await store.claim_planning("bench", 256)
            left -= len(claimed)
            if not claimed:
                await changed.wait()


async def flood(port: int, count: int, connections: int) -> None:
    """Send `count` signed webhooks of 10 KB as fast as they are answered."""
    requests = [load.request_bytes(load.push(number)[0]) for number in range(count)]
    # A search of all imported modules for cycles would hold back every connection for the time of several answers.
    tune_garbage_collection()
    print_facts(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    answers = await load.flood(port, requests, connections=connections)
    print_facts(
        began_at=began,
        done_at=time.monotonic(),
        refused=sum(answer.status != load.ACCEPTED for answer in answers),
        latencies=[answer.latency_seconds for answer in answers],
    )


async def claimer(url: str, name: str, workers: int) -> None:
    """Several workers on one store, until no job is left."""
    async with open_store(url) as store:
        await _claim_all(
            [
                functools.partial(claiming.claim_and_finish_batch, store, f"{name}{number}")
                for number in range(workers)
            ]
        )


async def bare_claimer(url: str, name: str, workers: int) -> None:
    """The yardstick's workers, each with its own connection."""
    async with AsyncExitStack() as opened:
        batches = []
        for number in range(workers):
            connection = await asyncpg.connect(url, server_settings={**SESSION, **PREFER_INDEXES})
            opened.push_async_callback(connection.close)
            batches.append(
                functools.partial(
                    yardsticks.claim_and_end, connection, f"{name}{number}", claiming.LABEL, claiming.BATCH
                )
            )
        await _claim_all(batches)


async def _claim_all(batches: Sequence[Callable[[], Awaitable[int]]]) -> None:
    """Let each worker do one batch and, after the start, all others."""
    await asyncio.gather(*[batch() for batch in batches])
    tune_garbage_collection()
    print_facts(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    began, cpu = time.monotonic(), time.process_time()
    jobs = await asyncio.gather(*[_until_none_is_left(batch) for batch in batches])
    print_facts(
        began_at=began, done_at=time.monotonic(), cpu_seconds=time.process_time() - cpu, jobs=sum(jobs)
    )


async def _until_none_is_left(batch: Callable[[], Awaitable[int]]) -> int:
    jobs = 0
    while done := await batch():
        jobs += done
    return jobs


async def collector(port: int) -> None:
    """A collector of spans that answers at once and reads nothing; ends with its parent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = re.findall(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
                await reader.readexactly(int(length))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        print_facts(ready=True)
        await server.serve_forever()


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    role.__name__: role
    for role in (
        naive_app,
        naive_consumer,
        plain_consumer,
        receiver,
        consumer,
        line_end,
        flood,
        claimer,
        bare_claimer,
        collector,
    )
}

if __name__ == "__main__":
    configure_logs("json", "warning")
    uvloop.run(ROLES[sys.argv[1]](**json.loads(sys.argv[2])))
