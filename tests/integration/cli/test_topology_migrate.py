"""`solstice topology migrate` on real brokers: plan, refusals, another name, dead letters."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from solstice_cli.commands.topology import app
from solstice_common.broker import Broker, Message
from solstice_common.broker.delivery import Ack
from solstice_common.broker.rabbitmq.tools.tool_connection import tool_connection
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, full_topology, split_jobs_route
from tests.polling import wait_until
from tests.raw_amqp import field, long, nested, properties, raw_publisher
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.traffic import connected, drain, numbers

EVERY_VERSION = True

JOBS, DEAD = "solstice.jobs.v1", "solstice.jobs.v1.dlq"
LAG: Final = "7"


def run(url: str, *arguments: str, code: int) -> str:
    done = CliRunner().invoke(
        app, ["migrate", "--amqp-url", url, *arguments], env={"AMQP_URL": None, "SOLSTICE_HOME": None}
    )
    codes = {"ConfigurationError": 2, "BrokerError": 3}
    found = codes.get(type(done.exception).__name__, done.exit_code)
    assert found == code, (done.exit_code, done.exception, done.output)
    return str(done.exception) if code > 1 else done.stdout


def migrate(vhost: Vhost, *arguments: str, code: int = 0) -> str:
    return run(
        vhost.url, "--management-url", vhost.server.management_url, "--counts-lag", LAG, *arguments, code=code
    )


def document(vhost: Vhost, *arguments: str, code: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(migrate(vhost, *arguments, "--json", code=code))
    return answer


def put(vhost: Vhost, queue_type: QueueType, exchange: str, key: str, count: int) -> None:
    """Declare everything of that type, and publish numbered messages."""

    async def work() -> None:
        topology = full_topology(BrokerSettings(amqp_queue_type=queue_type.value))
        async with connected(vhost.url, topology=topology) as broker:
            messages = [
                Message(exchange=exchange, routing_key=key, body=str(n).encode(), type="t")
                for n in range(count)
            ]
            assert all(each.confirmed for each in await broker.publish(messages))

    asyncio.run(work())


def consumed(vhost: Vhost, queue: str, queue_type: QueueType, count: int) -> list[int]:
    async def work() -> list[int]:
        settings = BrokerSettings(amqp_queue_type=queue_type.value)
        if queue == "solstice.jobs.v2":
            settings = settings.model_copy(update={"amqp_queue": queue})
        async with connected(vhost.url, topology=full_topology(settings)) as broker:
            return numbers(await drain(broker, queue, count))

    return asyncio.run(work())


def arguments_of(vhost: Vhost, queue: str) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = vhost.api("GET", "queues", queue)["arguments"]
    return arguments


def dead_letters(vhost: Vhost, count: int) -> list[int]:
    """Taken without declaring anything: the other queues are still of the old type."""

    async def work() -> list[int]:
        async with tool_connection(vhost.url, "test") as (connection, _):
            queue = await (await connection.channel()).get_queue(DEAD, ensure=False)
            return [int((await queue.get(no_ack=True)).body) for _ in range(count)]

    return asyncio.run(work())


def test_dead_letters_move_in_order_and_a_dry_run_changes_nothing(rabbitmq_vhost: Vhost) -> None:
    put(rabbitmq_vhost, QueueType.CLASSIC, "solstice.dlx", "jobrequest.v1", 300)
    options = ("--amqp-queue-type", "quorum", "--queue", DEAD)
    (planned,) = document(rabbitmq_vhost, *options, "--dry-run")["plan"]
    assert len(planned["steps"]) == 10
    assert arguments_of(rabbitmq_vhost, DEAD).get("x-queue-type", "classic") == "classic"
    migrate(rabbitmq_vhost, *options, code=2)  # a pipe gives no answer
    (done,) = document(rabbitmq_vhost, *options, "--yes")["migrated"]
    assert done["moved"] == 600
    assert arguments_of(rabbitmq_vhost, DEAD) == {"x-queue-type": "quorum"}
    assert document(rabbitmq_vhost, *options)["plan"][0]["steps"] == []
    assert dead_letters(rabbitmq_vhost, 300) == list(range(300))


def test_another_name_takes_the_messages_with_it(rabbitmq_vhost: Vhost) -> None:
    put(rabbitmq_vhost, QueueType.QUORUM, "solstice.jobs", "jobrequest.v1", 100)
    options = ("--amqp-queue", "solstice.jobs.v2", "--queue", "solstice.jobs.v2", "--from", JOBS)
    (done,) = document(rabbitmq_vhost, *options, "--yes")["migrated"]
    assert (done["moved"], done["consumers_left"]) == (100, 0)
    assert consumed(rabbitmq_vhost, "solstice.jobs.v2", QueueType.QUORUM, 100) == list(range(100))
    assert JOBS not in {row["name"] for row in rabbitmq_vhost.api("GET", "queues")}


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_another_name_is_given_under_load_and_the_old_queue_goes_with_its_last_reader(
    rabbitmq_vhost: Vhost,
) -> None:
    old = BrokerSettings(amqp_queue_type="classic")
    new = old.model_copy(update={"amqp_queue": "solstice.jobs.v2"})
    options = ("--amqp-queue-type", "classic", "--amqp-queue", new.amqp_queue, "--queue", new.amqp_queue)
    again = partial(document, rabbitmq_vhost, *options, "--from", JOBS, "--yes", "--counts-lag", "3")
    confirmed, seen, stop = set[int](), set[int](), asyncio.Event()

    async def publish(broker: Broker) -> None:
        for number in itertools.count():
            message = Message(
                exchange="solstice.jobs", routing_key="jobrequest.v1", body=b"%d" % number, type="t"
            )
            (outcome,) = await broker.publish([message])
            assert outcome.confirmed, outcome
            confirmed.add(number)
            if stop.is_set():
                return

    async def consume(settings: BrokerSettings) -> None:
        async with (
            connected(rabbitmq_vhost.url, topology=full_topology(settings)) as broker,
            broker.consume(settings.amqp_queue, prefetch=8) as consumer,
        ):
            while True:
                batch = await consumer.batch()
                seen.update(int(delivery.body) for delivery in batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])

    # What the brokers log would stand among the output of the command.
    with capture_logs():
        async with (
            connected(rabbitmq_vhost.url, topology=full_topology(old)) as broker,
            asyncio.TaskGroup() as tasks,
        ):
            publishing, reading = tasks.create_task(publish(broker)), tasks.create_task(consume(old))
            await wait_until(lambda: len(seen) > 20)
            (moved,) = (await asyncio.to_thread(again, code=1))["migrated"]
            assert moved["consumers_left"] == 1
            reading.cancel()
            await asyncio.wait([reading])
            reading = tasks.create_task(consume(new))
            (moved,) = (await asyncio.to_thread(again, code=0))["migrated"]
            assert moved["consumers_left"] == 0
            stop.set()
            await publishing
            await wait_until(lambda: seen >= confirmed)
            reading.cancel()
    names = {row["name"] for row in rabbitmq_vhost.api("GET", "queues")}
    assert new.amqp_queue in names
    assert JOBS not in names


def test_an_unreadable_message_moves_with_the_others(rabbitmq_vhost: Vhost) -> None:
    put(rabbitmq_vhost, QueueType.CLASSIC, "solstice.dlx", "jobrequest.v1", 2)
    with raw_publisher(rabbitmq_vhost.url) as publisher:
        header = properties(field(b"k", b"A", long(nested(1000))), correlation_id=b"\xff")
        assert publisher.publish("solstice.dlx", "jobrequest.v1", header, b"2")
    options = ("--amqp-queue-type", "quorum", "--queue", DEAD)
    (done,) = document(rabbitmq_vhost, *options, "--yes")["migrated"]
    assert done["moved"] == 6
    assert dead_letters(rabbitmq_vhost, 3) == [0, 1, 2]


def test_while_another_command_holds_the_lock_it_says_so(rabbitmq_vhost: Vhost) -> None:
    put(rabbitmq_vhost, QueueType.CLASSIC, "solstice.jobs", "jobrequest.v1", 1)

    async def work() -> None:
        async with tool_connection(rabbitmq_vhost.url, "another") as (connection, _):
            channel = await connection.channel()
            await channel.declare_queue(f"{JOBS}.migrating.lock", exclusive=True)
            error = await asyncio.to_thread(migrate, rabbitmq_vhost, "--queue", JOBS, "--yes", code=3)
            assert f"another 'solstice topology migrate' works on {JOBS}: wait for its end" in error

    asyncio.run(work())
    assert f"{JOBS}.migrating" not in {row["name"] for row in rabbitmq_vhost.api("GET", "queues")}


def test_what_is_refused_is_named_with_its_remedy_and_changes_nothing(rabbitmq_vhost: Vhost) -> None:
    put(rabbitmq_vhost, QueueType.CLASSIC, "solstice.jobs", "jobrequest.v1", 1)
    rabbitmq_vhost.policy(r"^solstice\.jobs", {"message-ttl": 3600000})
    answer = document(rabbitmq_vhost, "--queue", JOBS, "--yes", code=1)
    assert {each["object"] for each in answer["plan"][0]["refused"]} == {
        f"queue {JOBS}.migrating",
        f"queue {JOBS}",
    }
    assert all(
        "take message-ttl out of the policy" in each["remedy"] for each in answer["plan"][0]["refused"]
    )
    assert answer["migrated"] == []
    assert f"{JOBS}.migrating" not in {row["name"] for row in rabbitmq_vhost.api("GET", "queues")}


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nats://127.0.0.1:1", "sqlite:///{}/broker.db"])
def test_a_broker_without_types_of_queues_has_nothing_to_migrate(url: str, tmp_path: Path) -> None:
    at = url.format(tmp_path)
    assert run(at, code=0).startswith("nothing to migrate: queues of ")
    assert json.loads(run(at, "--json", code=0))["migrated"] == []
    run(at, "--queue", JOBS, "--from", "orders", code=2)


def test_a_wrong_queue_or_a_source_without_its_queue_is_a_usage_error(rabbitmq_vhost: Vhost) -> None:
    migrate(rabbitmq_vhost, "--queue", "orders", code=2)
    migrate(rabbitmq_vhost, "--from", "orders", code=2)


def test_a_queue_of_a_priority_class_is_migrated_by_its_name(rabbitmq_vhost: Vhost) -> None:
    options = ("--amqp-priorities", "split", "--amqp-queue-type")
    settings = BrokerSettings(amqp_queue_type="classic", amqp_priorities="split")
    high = split_jobs_route(settings).of(Priority.HIGH)

    async def fill() -> None:
        async with connected(rabbitmq_vhost.url, topology=full_topology(settings)) as broker:
            messages = [
                Message(exchange=high.dlx, routing_key=high.routing_key, body=b"%d" % n, type="t")
                for n in range(20)
            ]
            assert all(each.confirmed for each in await broker.publish(messages))

    asyncio.run(fill())
    migrate(rabbitmq_vhost, "--queue", high.dlq, code=2)  # AMQP_PRIORITIES=one knows no such queue
    (done,) = document(rabbitmq_vhost, *options, "quorum", "--queue", high.dlq, "--yes")["migrated"]
    assert done["moved"] == 40
    types = {row["name"]: row["type"] for row in rabbitmq_vhost.api("GET", "queues")}
    assert {name for name, kind in types.items() if kind == "quorum"} == {high.dlq}
    assert rabbitmq_vhost.api("GET", "bindings", f"e/{high.dlx}/q/{high.dlq}")
