"""Publish results when RabbitMQ refuses, returns, blocks or vanishes.

Each trap is listed in test_rabbitmq_traps.
"""

import asyncio
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from solstice_common.broker import Published, PublishStatus
from solstice_common.broker.capabilities import Certainty
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import QueueType
from tests.polling import wait_until
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.traffic import ROUTE, WAIT_SECONDS, connected, drain, numbers, order, wait_for_ready

EVERY_VERSION = True

CONFIRMED, UNROUTABLE, REJECTED, UNKNOWN = PublishStatus


def statuses(outcomes: list[Published]) -> list[PublishStatus]:
    return [outcome.status for outcome in outcomes]


async def test_unroutable_and_routable_publishes_in_flight_together_keep_their_own_outcomes(
    rabbitmq_vhost: Vhost,
) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        mixed = [order(n, routing_key="nobody" if n % 3 else ROUTE.routing_key) for n in range(300)]
        calls = await asyncio.gather(*(broker.publish([one]) for one in mixed))
        assert statuses([call[0] for call in calls]) == [
            UNROUTABLE if n % 3 else CONFIRMED for n in range(300)
        ]
        assert calls[1][0].detail == "NO_ROUTE"
        assert sorted(numbers(await drain(broker, ROUTE.queue, 100))) == list(range(0, 300, 3))


async def test_a_missing_exchange_rejects_its_own_messages_and_the_channel_recovers(
    rabbitmq_vhost: Vhost,
) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        messages = [order(0), order(1, exchange="gone"), order(2)]
        outcomes = list(await broker.publish(messages))
        assert outcomes[1].status is REJECTED
        assert "no exchange 'gone'" in outcomes[1].detail
        # The broker ignores what follows on that channel; what came before may have been taken.
        assert {outcomes[0].status, outcomes[2].status} <= {CONFIRMED, UNKNOWN}
        assert outcomes[2].status is UNKNOWN
        assert statuses(list(await broker.publish([order(3)]))) == [CONFIRMED]
        assert broker.health.connected


async def test_a_full_queue_rejects(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        rabbitmq_vhost.policy("^orders", {"max-length": 3})
        outcomes: list[Published] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while REJECTED not in statuses(outcomes):
                outcomes.extend(await broker.publish([order(len(outcomes))]))
        confirmed = [n for n, outcome in enumerate(outcomes) if outcome.confirmed]
        assert numbers(await drain(broker, ROUTE.queue, len(confirmed))) == confirmed
        assert "queue" in outcomes[-1].detail


async def test_a_message_above_the_servers_limit_is_rejected_not_unknown_forever(
    own_rabbitmq_vhost: Vhost,
) -> None:
    server, size = own_rabbitmq_vhost.server, 16 * 2**20 + 1
    if server.major < 4:  # where the limit is 128 MiB
        server.ctl(
            "eval",
            "application:set_env(rabbit, max_message_size, 1000), persistent_term:erase(max_message_size).",
        )
        size = 1001
    try:
        async with connected(own_rabbitmq_vhost.url) as broker:
            (outcome,) = await broker.publish([replace(order(0), body=b"x" * size)])
            assert outcome.status is REJECTED
            assert "larger than" in outcome.detail
            assert statuses(list(await broker.publish([order(1)]))) == [CONFIRMED]
    finally:
        if server.major < 4:
            again = "application:set_env(rabbit, max_message_size, 134217728), persistent_term:erase(max_message_size)."
            server.ctl("eval", again)


async def test_a_publish_that_waits_when_the_heartbeat_dies_ends_unknown_and_its_task_goes_on(
    rabbitmq_vhost: Vhost,
) -> None:
    reached: list[str] = []

    async def work() -> None:
        outcomes = await broker.publish([order(n) for n in range(100)])
        assert set(statuses(list(outcomes))) == {UNKNOWN}
        reached.append(outcomes[0].detail)

    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(f"{proxy.url(rabbitmq_vhost.url)}?heartbeat=1", confirm_timeout_seconds=50) as broker,
    ):
        proxy.freeze()
        async with asyncio.timeout(40), asyncio.TaskGroup() as group:
            group.create_task(work(), name="publisher")
        # A cancelled child would have ended the group as well, but silently.
        assert reached == ["the broker stopped answering (heartbeat)"]
        proxy.pass_through()
        await broker.ready(WAIT_SECONDS)
        assert statuses(list(await broker.publish([order(-1)]))) == [CONFIRMED]


async def test_a_blocked_broker_is_reported_and_what_was_not_sent_never_arrives(
    own_rabbitmq_vhost: Vhost,
) -> None:
    server = own_rabbitmq_vhost.server
    async with connected(own_rabbitmq_vhost.url, confirm_timeout_seconds=1) as broker:
        await asyncio.to_thread(server.raise_alarm, "memory")
        try:
            # RabbitMQ blocks a connection at its first publish after the alarm.
            (first,) = await broker.publish([order(0)])
            assert first.status is UNKNOWN
            assert "low on memory" in first.detail
            assert broker.health.blocked == "low on memory"
            assert broker.health.connected
            more = await broker.publish([order(n) for n in range(1, 50)])
            assert set(statuses(list(more))) == {UNKNOWN}
        finally:
            await asyncio.to_thread(server.clear_alarm, "memory")
        await wait_until(lambda: broker.health.blocked is None)
        # The first was on its way when the alarm arrived, so it is unknown; the others were never sent.
        await wait_for_ready(broker, ROUTE.queue, 1)
        assert numbers(await drain(broker, ROUTE.queue, 1)) == [0]
        await wait_until(lambda: broker.health.connected)
        assert statuses(list(await broker.publish([order(99)]))) == [CONFIRMED]


async def test_acks_and_declarations_work_during_an_alarm(own_rabbitmq_vhost: Vhost) -> None:
    server = own_rabbitmq_vhost.server
    async with connected(own_rabbitmq_vhost.url, confirm_timeout_seconds=1) as broker:
        await broker.publish([order(n) for n in range(20)])
        await asyncio.to_thread(server.raise_alarm, "memory")
        try:
            assert statuses(list(await broker.publish([order(20)]))) == [UNKNOWN]
            assert broker.health.blocked
            assert numbers(await drain(broker, ROUTE.queue, 20)) == list(range(20))
            await wait_for_ready(broker, ROUTE.queue, 0)
        finally:
            await asyncio.to_thread(server.clear_alarm, "memory")
        await wait_for_ready(broker, ROUTE.queue, 1)


async def both_links_are_lost(proxy: FaultProxy) -> None:
    """Refuse connections, and wait until the publishing link and the consuming one have noticed."""
    with capture_logs() as events:
        proxy.refuse()
        await wait_until(
            lambda: (
                {each["connection"] for each in events if each["event"] == LogEvent.BROKER_DISCONNECTED}
                == {"test (publish)", "test (consume)"}
            )
        )


async def test_not_connected_ends_unknown_with_the_reason_and_is_not_sent_later(
    rabbitmq_vhost: Vhost,
) -> None:
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(proxy.url(rabbitmq_vhost.url), confirm_timeout_seconds=1) as broker,
    ):
        await both_links_are_lost(proxy)
        (outcome,) = await broker.publish([order(0)])
        assert outcome.status is UNKNOWN
        assert outcome.detail.startswith("not connected within 1 s: ")
        proxy.pass_through()
        await broker.ready(WAIT_SECONDS)
        assert statuses(list(await broker.publish([order(1)]))) == [CONFIRMED]
        assert numbers(await drain(broker, ROUTE.queue, 1)) == [1]


async def test_a_publish_waits_for_a_link_that_comes_in_time(rabbitmq_vhost: Vhost) -> None:
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        connected(proxy.url(rabbitmq_vhost.url), confirm_timeout_seconds=WAIT_SECONDS) as broker,
    ):
        await both_links_are_lost(proxy)
        call = asyncio.create_task(broker.publish([order(0)]))
        proxy.pass_through()
        assert statuses(list(await call)) == [CONFIRMED]


@pytest.mark.parametrize("queue_type", QueueType)
async def test_a_confirm_that_promises_nothing_is_told_and_logged(
    rabbitmq_vhost: Vhost, queue_type: QueueType
) -> None:
    is_unsynced = queue_type is QueueType.CLASSIC and rabbitmq_vhost.server.major >= 4
    with capture_logs() as events:
        async with connected(rabbitmq_vhost.url, topology=ROUTE.topology(queue_type)) as broker:
            durable, degraded = broker.capabilities.durable_on_confirm, broker.health.degraded
    assert durable is (Certainty.NO if is_unsynced else Certainty.YES)
    assert ("set AMQP_QUEUE_TYPE=quorum" in str(degraded)) is is_unsynced
    logged = [each["detail"] for each in events if each["event"] == LogEvent.BROKER_DEGRADED]
    assert logged == ([degraded] if is_unsynced else [])


async def test_the_management_page_shows_everything_a_person_wants(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        await broker.publish([order(7)])
        query = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        path = f"queues/{rabbitmq_vhost.name}/{ROUTE.queue}/get"
        (shown,) = await asyncio.to_thread(rabbitmq_vhost.server.api, "POST", path, query)
        properties = shown["properties"]
        assert properties.pop("message_id")
        assert properties.pop("timestamp") > 1_700_000_000
        assert {key: properties[key] for key in ("type", "content_type", "app_id", "correlation_id")} == {
            "type": "order.v1",
            "content_type": "application/json",
            "app_id": "solstice-ci",
            "correlation_id": "order-7",
        }
        assert properties["delivery_mode"] == 2


async def test_the_password_is_not_shown(rabbitmq_vhost: Vhost) -> None:
    async with connected(rabbitmq_vhost.url) as broker:
        address = urlsplit(rabbitmq_vhost.url)
        assert address.password
        assert f"{address.username}:" not in broker.url
        assert str(address.port) in broker.url
