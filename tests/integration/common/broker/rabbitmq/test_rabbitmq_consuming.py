"""Deliveries that end well, badly or not at all. Each trap is listed in test_rabbitmq_traps."""

import asyncio
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from solstice_common.broker import Message
from solstice_common.broker.delivery import Ack, Refuse, Retry
from solstice_common.topology import Exchange, Queue, QueueType, Topology
from tests.polling import wait_until
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.traffic import (
    ROUTE,
    TOPOLOGY,
    WAIT_SECONDS,
    connected,
    drain,
    numbers,
    order,
    take,
    wait_for_ready,
)

EVERY_VERSION = True

ROOT = Path(__file__).resolve().parents[5]
BAD = Refuse(reason="invalid_field", detail="commit_sha: too short")

CONSUMER = """
import asyncio, sys
from tests.traffic import ROUTE, connected, take
async def main():
    async with connected(sys.argv[1]) as broker, broker.consume(ROUTE.queue, prefetch=10) as consumer:
        await take(consumer, 10)
        print("holding", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_what_a_killed_consumer_held_comes_again_once(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.publish([order(n) for n in range(10)])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONSUMER, rabbitmq_vhost.url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        while b"holding" not in (line := await process.stdout.readline()):
            assert line, "the consumer ended early"
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        again = await drain(broker, ROUTE.queue, 10)
        assert sorted(numbers(again)) == list(range(10))
        assert all(delivery.redelivered for delivery in again)


async def test_acks_of_a_lost_connection_are_harmless(rabbitmq_vhost: Vhost) -> None:
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(proxy.url(rabbitmq_vhost.url)) as broker,
        broker.consume(ROUTE.queue, prefetch=10) as consumer,
    ):
        await broker.publish([order(n) for n in range(10)])
        stale = await take(consumer, 10)
        links = proxy.connections
        proxy.drop()
        again = await take(consumer, 10)
        assert all(delivery.redelivered for delivery in again)
        # The same tags are in use on the new channel, for other deliveries perhaps: none of these may reach it.
        await consumer.settle([(delivery, Ack()) for delivery in stale[:4]])
        await consumer.settle([(delivery, Retry(reason="late")) for delivery in stale[4:6]])
        await consumer.settle([(delivery, BAD) for delivery in stale[6:8]])
        await consumer.settle([(delivery, Ack()) for delivery in again[:9]])
        await broker.ready(WAIT_SECONDS)
        assert proxy.connections == links + 2
        await wait_for_ready(broker, ROUTE.dlq, 0)
    async with connected(rabbitmq_vhost.url) as broker:
        assert numbers(await drain(broker, ROUTE.queue, 1)) == numbers(again[9:])


async def test_acks_of_a_channel_the_broker_closed_are_harmless(own_rabbitmq_vhost: Vhost) -> None:
    """The consumer timeout closes the channel, or cancels the consumer since 4.3."""
    server = own_rabbitmq_vhost.server
    await asyncio.to_thread(_consumer_timeout, own_rabbitmq_vhost, 1000, 500)
    try:
        async with (
            connected(own_rabbitmq_vhost.url) as broker,
            broker.consume(ROUTE.queue, prefetch=10) as consumer,
        ):
            await broker.publish([order(n) for n in range(3)])
            unsettled = await take(consumer, 3)
            again = await take(consumer, 3)
            await asyncio.to_thread(_consumer_timeout, own_rabbitmq_vhost, 1_800_000, 60_000)
            assert sorted(numbers(again)) == [0, 1, 2]
            await consumer.settle([(delivery, Ack()) for delivery in unsettled])
            # A consumer that settles in time works as before.
            await broker.publish([order(3)])
            async with asyncio.timeout(WAIT_SECONDS):
                settled: set[int] = set()
                while not {0, 1, 2, 3} <= settled:
                    await consumer.settle([(delivery, Ack()) for delivery in again])
                    settled.update(numbers(again))
                    again = list(await consumer.batch()) if not {0, 1, 2, 3} <= settled else []
            await wait_for_ready(broker, ROUTE.queue, 0)
    finally:
        await asyncio.to_thread(_consumer_timeout, own_rabbitmq_vhost, 1_800_000, 60_000)
    assert server.amqp_answers()


def _consumer_timeout(vhost: Vhost, milliseconds: int, tick: int) -> None:
    settings = {"consumer_timeout": milliseconds, "channel_tick_interval": tick}
    code = "".join(f"application:set_env(rabbit, {key}, {value})," for key, value in settings.items())
    vhost.server.ctl("eval", f"{code} ok.")


async def test_a_queue_deleted_and_made_again_by_an_operator_is_consumed_again(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker, broker.consume(ROUTE.queue, prefetch=10) as consumer:
        await broker.publish([order(0)])
        (before,) = await take(consumer, 1)
        await asyncio.to_thread(rabbitmq_vhost.api, "DELETE", "queues", ROUTE.queue)
        # With other arguments: a client that declares its own at once would get in the operator's way.
        made = {"durable": True, "arguments": {"x-queue-type": "classic"}}
        await asyncio.to_thread(rabbitmq_vhost.api, "PUT", "queues", ROUTE.queue, made)
        bound = {"routing_key": ROUTE.routing_key}
        path = f"e/{ROUTE.exchange}/q/{ROUTE.queue}"
        await asyncio.to_thread(rabbitmq_vhost.api, "POST", "bindings", path, bound)
        assert (await broker.publish([order(1)]))[0].confirmed
        (after,) = await take(consumer, 1)
        assert numbers([after]) == [1]
        await consumer.settle([(before, Ack()), (after, Ack())])
        await wait_for_ready(broker, ROUTE.queue, 0)


async def test_a_queue_that_stays_deleted_is_declared_again(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker, broker.consume(ROUTE.queue, prefetch=10) as consumer:
        await asyncio.to_thread(rabbitmq_vhost.api, "DELETE", "queues", ROUTE.queue)
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await broker.publish([order(1)]))[0].confirmed:  # noqa: ASYNC110  asks a server
                await asyncio.sleep(0.05)
        assert numbers(await take(consumer, 1)) == [1]


async def test_leaving_hands_everything_back_and_nothing_to_the_dead_letters(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.publish([order(n) for n in range(60)])
        leaving = asyncio.Event()

        async def work() -> None:
            async with broker.consume(ROUTE.queue, prefetch=30) as consumer:
                unsettled = await take(consumer, 30)
                await consumer.settle([(unsettled[3], Ack())])
                leaving.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await leaving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rest = await drain(broker, ROUTE.queue, 59)
        assert sorted(numbers(rest)) == [n for n in range(60) if n != 3]
        counts = [delivery.headers.get("x-delivery-count", 0) for delivery in rest if delivery.redelivered]
        assert set(counts) <= {0, 1}
        await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_an_error_in_the_body_hands_everything_back_too(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.publish([order(0)])

        async def work() -> None:
            async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
                await take(consumer, 1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert numbers(await drain(broker, ROUTE.queue, 1)) == [0]
        await wait_for_ready(broker, ROUTE.dlq, 0)


async def test_retrying_forever_ends_in_the_dead_letters_by_the_brokers_own_limit(
    rabbitmq_vhost: Vhost,
) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        rabbitmq_vhost.policy("^orders", {"delivery-limit": 2})
        await broker.publish([order(0)])
        async with broker.consume(ROUTE.queue, prefetch=1) as consumer, asyncio.TaskGroup() as group:

            async def retry() -> None:
                while True:
                    await consumer.settle(
                        [(each, Retry(reason="store_away")) for each in await consumer.batch()]
                    )

            retrying = group.create_task(retry())
            await wait_for_ready(broker, ROUTE.dlq, 1)
            retrying.cancel()
        (dead,) = await drain(broker, ROUTE.dlq, 1)
        assert numbers([dead]) == [0]


async def test_a_refused_message_keeps_its_properties_and_says_why(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker, broker.consume(ROUTE.queue, prefetch=1) as consumer:
        forged = {"x-death": "forged", "x-delivery-count": 7, "traceparent": "00-1"}
        # As a service in another language would send it.
        given = {
            "delivery_mode": 2,
            "priority": 3,
            "content_type": "application/json",
            "content_encoding": "identity",
            "reply_to": "answers",
            "expiration": "600000",
            "correlation_id": "c-1",
            "type": "order.v1",
            "app_id": "other",
            "user_id": urlsplit(rabbitmq_vhost.url).username,
            "headers": forged,
        }
        sent = {
            "properties": given,
            "routing_key": ROUTE.routing_key,
            "payload": "not json",
            "payload_encoding": "string",
        }
        await asyncio.to_thread(rabbitmq_vhost.api, "POST", "exchanges", f"{ROUTE.exchange}/publish", sent)
        (refused,) = await take(consumer, 1)
        await consumer.settle([(refused, BAD)])
        await wait_for_ready(broker, ROUTE.dlq, 1)
        query = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
        path = f"queues/{rabbitmq_vhost.name}/{ROUTE.dlq}/get"
        (dead,) = await asyncio.to_thread(rabbitmq_vhost.server.api, "POST", path, query)
        properties, headers = dead["properties"], dead["properties"]["headers"]
        assert dead["payload"] == "not json"
        assert dead["routing_key"] == ROUTE.routing_key
        stored = (
            "priority",
            "content_type",
            "content_encoding",
            "reply_to",
            "correlation_id",
            "type",
            "app_id",
        )
        assert {key: properties[key] for key in stored} == {key: given[key] for key in stored}
        # It must neither expire there, nor claim to come from a user that is not ours.
        assert "expiration" not in properties
        assert "user_id" not in properties
        assert headers["x-solstice-reason"] == BAD.reason
        assert headers["x-solstice-detail"] == BAD.detail
        assert headers["x-solstice-queue"] == ROUTE.queue
        assert headers["x-solstice-refused-by"] == "test"
        assert headers["x-solstice-refused-at"]
        assert headers["traceparent"] == "00-1"
        assert "x-death" not in headers
        assert headers.get("x-delivery-count", 0) == 0


async def test_a_message_whose_dead_letter_cannot_be_published_is_dead_lettered_by_the_broker(
    rabbitmq_vhost: Vhost,
) -> None:
    """Our dead-letter exchange has no binding, but a policy gives the broker another."""
    alone = Topology(
        exchanges=TOPOLOGY.exchanges,
        queues=(
            Queue(name=ROUTE.queue, arguments={"x-queue-type": "quorum"}),
            Queue(name=ROUTE.dlq, arguments={"x-queue-type": "quorum"}),
        ),
        bindings=TOPOLOGY.bindings,
    )
    async with connected(rabbitmq_vhost.url, topology=alone) as broker:
        rabbitmq_vhost.policy("^orders.v1$", {"dead-letter-exchange": ROUTE.dlx})
        await broker.publish([order(0), order(1)])
        async with broker.consume(ROUTE.queue, prefetch=2) as consumer:
            await consumer.settle([(each, BAD) for each in await take(consumer, 2)])
            dead = await drain(broker, ROUTE.dlq, 2)
        assert sorted(numbers(dead)) == [0, 1]
        assert all("x-death" in delivery.headers for delivery in dead)


async def test_a_dead_letter_exchange_without_a_queue_loses_nothing(rabbitmq_vhost: Vhost) -> None:
    unbound = Topology(exchanges=TOPOLOGY.exchanges, queues=TOPOLOGY.queues, bindings=TOPOLOGY.bindings[:1])
    async with connected(rabbitmq_vhost.url, topology=unbound) as broker:
        await broker.publish([order(0)])
        async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
            # Unroutable, so rejected: the broker keeps it, at-least-once, and tries again after three minutes.
            await consumer.settle([(each, BAD) for each in await take(consumer, 1)])
            await wait_for_ready(broker, ROUTE.queue, 0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.batch(), 1)


async def test_the_counters_a_client_put_on_a_message_are_not_believed(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker, broker.consume(ROUTE.queue, prefetch=1) as consumer:
        message = Message(
            exchange=ROUTE.exchange,
            routing_key=ROUTE.routing_key,
            body=b"0",
            type="order.v1",
            headers={"x-delivery-count": 19, "x-acquired-count": 7, "x-first-death-queue": "q", "kept": True},
        )
        await broker.publish([message])
        (delivery,) = await take(consumer, 1)
        assert delivery.headers.get("x-delivery-count", 0) == 0
        assert {key for key in delivery.headers if key != "x-delivery-count"} == {"kept"}


async def test_a_blocked_event_loop_costs_a_redelivery_and_no_more(rabbitmq_vhost: Vhost) -> None:
    async with (
        connected(f"{rabbitmq_vhost.url}?heartbeat=1") as broker,
        broker.consume(ROUTE.queue, prefetch=10) as consumer,
    ):
        await broker.publish([order(0)])
        (unsettled,) = await take(consumer, 1)
        time.sleep(5)  # noqa: ASYNC251  the very thing that must not happen
        await consumer.settle([(unsettled, Ack())])
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await broker.publish([order(1)]))[0].confirmed:  # noqa: ASYNC110  asks a server
                await asyncio.sleep(0.05)
            seen: set[int] = set()
            while 1 not in seen:
                batch = list(await consumer.batch())
                seen.update(numbers(batch))
                await consumer.settle([(each, Ack()) for each in batch])
        await wait_until(lambda: broker.health.connected)
        await wait_for_ready(broker, ROUTE.queue, 0)


@pytest.mark.parametrize("kind", list(QueueType), ids=str)
async def test_acks_from_many_tasks_in_any_order_settle_everything_once(
    rabbitmq_vhost: Vhost, kind: QueueType
) -> None:
    async with (
        connected(rabbitmq_vhost.url, topology=ROUTE.topology(kind)) as broker,
        broker.consume(ROUTE.queue, prefetch=50) as consumer,
    ):
        await broker.publish([order(n) for n in range(400)])
        seen: list[int] = []
        async with asyncio.TaskGroup() as group, asyncio.timeout(WAIT_SECONDS):
            while len(seen) < 400:
                batch = list(await consumer.batch())
                seen.extend(numbers(batch))
                for delivery in reversed(batch):
                    group.create_task(consumer.settle([(delivery, Ack())]))
        assert sorted(seen) == list(range(400))
    async with connected(rabbitmq_vhost.url, topology=ROUTE.topology(kind)) as broker:
        await wait_for_ready(broker, ROUTE.queue, 0)


async def test_an_unused_exchange_in_a_topology_is_no_obstacle(rabbitmq_vhost: Vhost) -> None:
    more = Topology(exchanges=(Exchange(name="more", kind="direct"),), queues=(), bindings=())
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.declare(more)
        await broker.declare(more)
        assert (await broker.publish([order(0)]))[0].confirmed
