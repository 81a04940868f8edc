"""The line to a real RabbitMQ, also one that goes away and comes back."""

import asyncio

import httpx2
import pytest

from solstice_common.broker import open_broker
from solstice_forge.settings import ForgeSettings
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import number_of, push, received
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost


async def send(client: httpx2.AsyncClient, number: int) -> None:
    body, headers = push(number)
    answer = await client.post("/webhooks/forgejo", content=body, headers=headers)
    assert (answer.status_code, answer.json()["decision"]) == (202, "accepted")


async def numbers(settings: ForgeSettings, count: int) -> list[int]:
    async with open_broker(settings.amqp_url, name="test") as broker:
        return [number_of(one) for one in await received(broker, settings, count)]


async def until_requested(client: httpx2.AsyncClient, part: str = "") -> str:
    """Wait until `/readyz` reports a broker failure whose text has `part`."""
    async with asyncio.timeout(60):
        while True:
            reported = str((await client.get("/readyz")).json()["missing"].get("broker"))
            if reported != "None" and part in reported:
                return reported
            await asyncio.sleep(0.05)


async def until_nothing_is_pending(client: httpx2.AsyncClient) -> None:
    """What was published is marked a moment after the broker passed it on."""
    async with asyncio.timeout(10):
        while True:
            if (await client.get("/readyz")).json()["backlog"] == 0:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
async def test_pushes_arrive_once_and_in_order(
    rabbitmq_vhost: Vhost, queue_type: str, make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings(amqp_url=rabbitmq_vhost.url, amqp_queue_type=queue_type)
    async with running(settings) as client:
        for number in range(1, 51):
            await send(client, number)
        assert await numbers(settings, 50) == list(range(1, 51))


async def test_message_has_every_property(
    rabbitmq_vhost: Vhost, make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings(amqp_url=rabbitmq_vhost.url)
    async with running(settings) as client, open_broker(settings.amqp_url, name="test") as broker:
        await send(client, 1)
        await broker.ready(30)
        async with broker.consume(settings.amqp_queue, prefetch=1) as consumer, asyncio.timeout(30):
            (delivery,) = await consumer.batch()
    assert (delivery.exchange, delivery.routing_key) == ("solstice.jobs", "jobrequest.v1")
    assert delivery.type == "jobrequest.v1"
    assert delivery.message_id
    assert delivery.correlation_id
    assert delivery.headers["x-solstice-attempt"] == 1
    assert str(delivery.headers["x-solstice-idempotency-key"]).startswith("push:")


async def test_webhooks_are_taken_while_the_broker_is_down_and_published_in_order_when_it_is_back(
    own_rabbitmq_vhost: Vhost, make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings(amqp_url=own_rabbitmq_vhost.url)
    server = own_rabbitmq_vhost.server
    async with running(settings) as client:
        for number in range(1, 6):
            await send(client, number)
        assert await numbers(settings, 5) == [1, 2, 3, 4, 5]
        await asyncio.to_thread(server.stop)
        await until_requested(client)
        for number in range(6, 31):
            await send(client, number)
        await asyncio.to_thread(server.start)
        assert await numbers(settings, 25) == list(range(6, 31))
        await until_nothing_is_pending(client)


async def test_cut_connections_in_the_middle_lose_nothing(
    rabbitmq_vhost: Vhost, make_settings: MakeSettings, running: Running
) -> None:
    """A copy whose confirm got lost may arrive twice, with the same request id."""
    direct = make_settings(amqp_url=rabbitmq_vhost.url)
    async with (
        fault_proxy(rabbitmq_vhost.url) as proxy,
        running(make_settings(amqp_url=proxy.url(rabbitmq_vhost.url))) as client,
        open_broker(direct.amqp_url, name="test") as broker,
    ):
        for number in range(1, 201):
            await send(client, number)
            if number % 40 == 0:
                proxy.drop()
        requests = await received(broker, direct, 200, distinct=True)
        assert proxy.connections > 2, "it reconnected"
    assert {number_of(one) for one in requests} == set(range(1, 201))


async def test_queue_with_other_arguments_is_reported_and_webhooks_are_still_taken(
    rabbitmq_vhost: Vhost, make_settings: MakeSettings, running: Running
) -> None:
    classic = make_settings(amqp_url=rabbitmq_vhost.url, amqp_queue_type="classic")
    async with running(classic) as client:
        await send(client, 1)
        assert await numbers(classic, 1) == [1]
    quorum = make_settings(amqp_url=rabbitmq_vhost.url, forge_grace_seconds=1)
    async with running(quorum) as client:
        await send(client, 2)
        assert "solstice.jobs.v1" in await until_requested(client, "AMQP_QUEUE_TYPE")
