"""A queue in use is migrated, and the command is killed three times.

`MIGRATED_MESSAGES=10000 ./just test tests/chaos/test_queue_migration.py` is the full run; by default there are fewer.
"""

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import pytest

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, full_topology
from tests.bench import load
from tests.builders import job_request
from tests.e2e.deployment import JOBS, Deployment, open_deployment
from tests.polling import wait_until_true
from tests.servers.rabbitmq import Vhost
from tests.traffic import WAIT_SECONDS

COUNT: Final = int(os.environ.get("MIGRATED_MESSAGES", "1000"))
WEBHOOKS: Final = 60
WEBHOOKS_PER_SECOND: Final = 10.0
COUNTS_LAG_SECONDS: Final = {QueueType.QUORUM: 7, QueueType.CLASSIC: 3}
"""By the old type: the servers of the tests count again each second, and quorum queues each five."""
INTERIM: Final = f"{JOBS.queue}.migrating"
SECOND_KILL: Final = {QueueType.QUORUM: f"delete {JOBS.queue}", QueueType.CLASSIC: f"declare {JOBS.queue} ("}
"""By the new type: perhaps before the old queue is deleted, or just after, when there is none of that name."""
OTHER: Final = {QueueType.QUORUM: QueueType.CLASSIC, QueueType.CLASSIC: QueueType.QUORUM}


class Command:
    """A running `solstice topology migrate`, and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []

    async def prints(self, beginning: str) -> bool:
        """Read until it says so; whether it did before its end."""
        assert self._process.stderr is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while line := (await self._process.stderr.readline()).decode():
                self.lines.append(line.rstrip())
                if line.startswith(beginning):
                    return True
        return False

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def ends(self) -> int:
        await self.prints("\0")
        return await self._process.wait()


@asynccontextmanager
async def migrating(vhost: Vhost, target: QueueType) -> AsyncIterator[Command]:
    """The command as a process, which does not outlive the body."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "solstice_cli", "topology", "migrate", "--yes", "--queue", JOBS.queue),
        *("--amqp-url", vhost.url, "--management-url", vhost.server.management_url),
        *("--amqp-queue-type", target, "--counts-lag", str(COUNTS_LAG_SECONDS[OTHER[target]])),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def publish(broker: Broker, count: int) -> None:
    messages = [
        Message(
            exchange=JOBS.exchange,
            routing_key=JOBS.routing_key,
            body=job_request(ref=f"refs/heads/change-{number}").encode(),
            type="jobrequest.v1",
        )
        for number in range(count)
    ]
    assert all(each.confirmed for each in await broker.publish(messages))


def rows(deployment: Deployment, question: str) -> int:
    with closing(
        sqlite3.connect(f"file:{deployment.shared_files.directory / 'store.db'}?mode=ro", uri=True)
    ) as store:
        (count,) = store.execute(question).fetchone()
    return int(count)


async def moved_something(broker: Broker) -> bool:
    depth = await broker.depth(INTERIM)
    return depth is not None and depth.ready > 0


@pytest.mark.timeout(120 + COUNT // 20)
@pytest.mark.parametrize("target", QueueType)
async def test_a_queue_migrated_under_load_and_three_kills_loses_and_repeats_nothing(
    rabbitmq_vhost: Vhost, tmp_path: Path, target: QueueType
) -> None:
    settings = BrokerSettings(amqp_url=rabbitmq_vhost.url, amqp_queue_type=OTHER[target].value)
    async with (
        open_deployment(rabbitmq_vhost, tmp_path) as deployment,
        open_broker(settings.amqp_url, name="test") as broker,
        asyncio.TaskGroup() as group,
    ):
        await broker.ready(WAIT_SECONDS)
        await broker.declare(full_topology(settings))
        services = {
            # However long it is frozen, its connection stays: a new one would declare the old queue.
            "AMQP_URL": f"{rabbitmq_vhost.url}?heartbeat=300",
            "AMQP_QUEUE_TYPE": OTHER[target],
            "FORGEJO_WEBHOOK_SECRET": load.SECRET,
        }
        orchestrator = await deployment.orchestrator(**services)
        await deployment.forge(**services)
        orchestrator.freeze()  # it holds its delivered messages, and takes no more
        await publish(broker, COUNT)
        webhooks = [load.request_bytes(load.push(number)[0]) for number in range(WEBHOOKS)]
        answers = group.create_task(
            load.paced(deployment.forge_port, webhooks, per_second=WEBHOOKS_PER_SECOND)
        )

        async with migrating(rabbitmq_vhost, target) as first:
            assert await first.prints(f"move what waits in {JOBS.queue} to {INTERIM}"), first.lines
            await wait_until_true("messages move", lambda: moved_something(broker))
            await first.kill()
        orchestrator.thaw()
        async with migrating(rabbitmq_vhost, target) as second:
            assert await second.prints(SECOND_KILL[target]), second.lines
            await second.kill()
        async with migrating(rabbitmq_vhost, target) as third:
            assert await third.prints(f"move what waits in {INTERIM} to"), third.lines
            await third.kill()
        async with migrating(rabbitmq_vhost, target) as last:
            assert await last.ends() == 0, last.lines

        assert [each.status for each in await answers] == [load.ACCEPTED] * WEBHOOKS
        await wait_until_true("all is published", deployment.all_is_published)

        async def all_are_runs() -> bool:
            return rows(deployment, "SELECT count(*) FROM runs") >= COUNT + WEBHOOKS

        await wait_until_true("every request is a run", all_are_runs)

        async def queue_is_empty() -> bool:
            depth = await broker.depth(JOBS.queue)
            return depth is not None and depth.ready == 0 and depth.consumers == 1

        await wait_until_true("the consumer has come back and read all", queue_is_empty)
        assert await broker.depth(INTERIM) is None
        arguments = rabbitmq_vhost.api("GET", "queues", JOBS.queue)["arguments"]
        expected = full_topology(settings.model_copy(update={"amqp_queue_type": target})).queue(JOBS.queue)
        assert {"x-queue-type": "classic", **arguments} == {"x-queue-type": "classic", **expected.arguments}
        distinct = rows(deployment, "SELECT count(DISTINCT request_key) FROM runs")
        runs = rows(deployment, "SELECT count(*) FROM runs")
        assert (runs, distinct) == (COUNT + WEBHOOKS, COUNT + WEBHOOKS)
        sys.stdout.write(
            f"RabbitMQ {rabbitmq_vhost.server.version}, to {target}: {COUNT + WEBHOOKS} requests, 3 kills, {runs} runs: "
            f"lost {COUNT + WEBHOOKS - distinct}, duplicate effects {runs - distinct}\n"
        )
