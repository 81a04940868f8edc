"""A job asked for with nothing but the broker's own client runs once."""

import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import aio_pika
import httpx2
import nats
import pytest
import redis

from tests.brokers import EMBEDDED, broker_url, pytest_generate_tests
from tests.polling import wait_until_true
from tests.servers.solstice_up import repository, solstice_up

__all__ = ["broker_url", "pytest_generate_tests"]

WITHOUT_BROKERS = (EMBEDDED,)  # has no client but ours
EVERY_VERSION = True
QUEUE: Final = "solstice.jobs.v1"
WORKFLOW: Final = 'job "hello" { step "say" run="echo hello over $SOLSTICE_SOURCE"; }'


async def add_by_redis_py(url: str, bodies: list[bytes]) -> None:
    with redis.Redis.from_url(url) as client:
        for body in bodies:
            client.xadd(QUEUE, {"body": body})


async def publish_by_nats_py(url: str, bodies: list[bytes]) -> None:
    client = await nats.connect(url)
    try:
        for body in bodies:
            assert (await client.jetstream().publish(QUEUE, body)).stream
    finally:
        await client.close()


async def publish_by_aio_pika(url: str, bodies: list[bytes]) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange("solstice.jobs")
        for body in bodies:
            await exchange.publish(aio_pika.Message(body), "jobrequest.v1")


PUBLISH: Final[dict[str, Callable[[str, list[bytes]], Awaitable[None]]]] = {
    "redis": add_by_redis_py,
    "nats": publish_by_nats_py,
    "amqp": publish_by_aio_pika,
}


def request(repo_url: str, commit_sha: str) -> bytes:
    """Write the required fields of a `jobrequest.v1` by hand, as other languages do."""
    return json.dumps(
        {
            "schema_version": "jobrequest.v1",
            "request_id": str(uuid.uuid4()),
            "source": "manual",
            "repo_url": repo_url,
            "commit_sha": commit_sha,
            "submitted_at": "2026-01-31T12:00:00Z",
        }
    ).encode()


async def is_ready(page: str) -> bool:
    """Whether clients may publish.

    On a busy machine, `up` may print its line earlier.
    """
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{page}/readyz")).is_success


@pytest.mark.timeout(240)  # it may have to start a RabbitMQ first
async def test_job_asked_for_with_the_broker_s_own_client_succeeds(broker_url: str, tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    with solstice_up(tmp_path / "state", "--broker", broker_url) as up:
        good = request(project.folder.as_uri(), project.head)
        await wait_until_true("it is ready", lambda: is_ready(up.page))
        publish = PUBLISH[broker_url.partition(":")[0]]
        await publish(broker_url, [good, b"no JSON", good])

        async def has_ended() -> bool:
            return [run["state"] for run in up.json("runs")["runs"]] == ["succeeded"]

        await wait_until_true("the one run has succeeded", has_ended)
        (job,) = up.json("jobs")["jobs"]
        assert "hello over manual\n" in up.solstice("logs", job["job_id"]).stdout

        async def is_dead() -> bool:
            dead = up.json("dlq", "list", "--amqp-url", broker_url)
            return [each["reason"] for each in dead["dead_letters"]] == ["not_json"]

        await wait_until_true("what is no JSON is a dead letter", is_dead)
