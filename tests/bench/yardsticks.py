"""The yardsticks of our figures: the plainest correct program for each part.

Each is what a careful engineer writes from the library's own documentation in an afternoon.
"""

import asyncio
import hashlib
import hmac
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import asyncpg
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@asynccontextmanager
async def channel(url: str) -> AsyncIterator[AbstractChannel]:
    """A channel with confirms whose unroutable publishes raise."""
    connection = await aio_pika.connect_robust(url)
    try:
        yield await connection.channel(publisher_confirms=True, on_return_raises=True)
    finally:
        await connection.close()


async def declare(url: str, exchange: str, queue: str, routing_key: str) -> None:
    """A durable quorum queue behind a direct exchange."""
    async with channel(url) as opened:
        direct = await opened.declare_exchange(exchange, aio_pika.ExchangeType.DIRECT, durable=True)
        work = await opened.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        await work.bind(direct, routing_key)


async def publish(
    url: str, exchange: str, routing_key: str, bodies: Sequence[bytes], in_flight: int
) -> float:
    """Publish all with confirms, mandatory and persistent; return the seconds.

    `in_flight` publishes are under way at a time.
    """
    async with channel(url) as opened:
        direct = await opened.get_exchange(exchange)
        waiting = iter(bodies)

        async def worker() -> None:
            for body in waiting:
                await direct.publish(
                    aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                    routing_key,
                    mandatory=True,
                )

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
        return time.perf_counter() - began


async def consume(url: str, queue: str, count: int, prefetch: int) -> None:
    """Consume `count` messages and ack each; nothing is decoded, nothing stored."""
    async with channel(url) as opened:
        await opened.set_qos(prefetch_count=prefetch)
        work = await opened.get_queue(queue)
        done, left = asyncio.Event(), count

        async def handle(message: AbstractIncomingMessage) -> None:
            nonlocal left
            await message.ack()
            left -= 1
            if left == 0:
                done.set()

        await work.consume(handle)
        await done.wait()


def naive_app(url: str, exchange: str, routing_key: str, secret: bytes) -> Starlette:
    """A webhook receiver that checks, parses and awaits one confirmed publish for each request."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with channel(url) as opened:
            app.state.exchange = await opened.get_exchange(exchange)
            yield

    async def receive(request: Request) -> Response:
        body = await request.body()
        expected = hmac.new(secret, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, request.headers.get("x-forgejo-signature", "")):
            return JSONResponse({"error": "bad signature"}, status_code=401)
        push = json.loads(body)
        message = {
            "repo_url": push["repository"]["clone_url"],
            "commit_sha": push["after"],
            "ref": push["ref"],
            "delivery_id": request.headers["x-forgejo-delivery"],
        }
        await request.app.state.exchange.publish(
            aio_pika.Message(json.dumps(message).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
            routing_key,
            mandatory=True,
        )
        return JSONResponse({"ok": True}, status_code=202)

    return Starlette(routes=[Route("/webhooks/forgejo", receive, methods=["POST"])], lifespan=lifespan)


async def naive_consumer(url: str, queue: str, database: Path, count: int, prefetch: int) -> None:
    """Consume `count` messages with one transaction and one ack for each.

    Each goes to the dispatcher's queue afterwards.
    """
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE jobs (delivery_id TEXT PRIMARY KEY, body TEXT NOT NULL, state TEXT NOT NULL)"
    )
    dispatch: asyncio.Queue[str] = asyncio.Queue()
    try:
        async with channel(url) as opened:
            await opened.set_qos(prefetch_count=prefetch)
            work = await opened.get_queue(queue)

            async def handle(message: AbstractIncomingMessage) -> None:
                job = json.loads(message.body)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "INSERT INTO jobs VALUES (?, ?, 'waiting')", (job["delivery_id"], message.body.decode())
                )
                connection.execute("COMMIT")
                await message.ack()
                dispatch.put_nowait(job["delivery_id"])

            await work.consume(handle)
            for _ in range(count):
                await dispatch.get()
    finally:
        connection.close()


_CLAIM = """
WITH moment AS (SELECT extract(epoch FROM clock_timestamp()) AS now),
next AS MATERIALIZED (
    SELECT job_id, run_id FROM jobs WHERE state = 'waiting' AND runs_on = $1
    ORDER BY priority, start_tag, job_id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
told AS (
    INSERT INTO outbox (kind, request_id, body, messages) SELECT 'statuses', '', $4, count(*) FROM next HAVING count(*) > 0)
UPDATE jobs SET state = 'running', reason = 'claimed', sequence = sequence + 1, attempt = attempt + 1,
    worker_id = $3, started_at = moment.now, lease_until = moment.now + 60
FROM next JOIN requests USING (run_id), moment WHERE jobs.job_id = next.job_id
RETURNING jobs.job_id, jobs.spec, requests.body
"""
_END = """
WITH moment AS (SELECT extract(epoch FROM clock_timestamp()) AS now),
ended AS (
    UPDATE jobs SET state = 'succeeded', reason = 'completed', sequence = sequence + 1, finished_at = moment.now,
        lease_until = NULL, exit_code = 0
    FROM moment WHERE job_id = ANY($1) AND state = 'running'
    RETURNING run_id, started_at, finished_at),
told AS (INSERT INTO outbox (kind, request_id, body, messages) SELECT 'statuses', '', $2, count(*) FROM ended)
UPDATE runs SET state = 'succeeded', sequence = sequence + 2, started_at = ended.started_at, finished_at = ended.finished_at
FROM ended WHERE runs.run_id = ended.run_id
"""
_STATUSES = bytes(range(256)) * 8
"""The typical size of a compressed batch of statuses."""


async def claim_and_end(
    connection: "asyncpg.Connection[asyncpg.Record]", worker: str, label: str, batch: int
) -> int:
    """Start and end the first `batch` jobs of a label; return how many.

    It uses one statement for each and decides nothing. The rows are those that our store writes: fewer statements
    cannot write them.
    """
    rows = await connection.fetch(_CLAIM, label, batch, worker, _STATUSES)
    if rows:
        await connection.execute(_END, [row["job_id"] for row in rows], _STATUSES)
    return len(rows)
