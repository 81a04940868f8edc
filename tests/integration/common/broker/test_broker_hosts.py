"""Addresses with several hosts go to the next one and lose nothing confirmed.

Two proxies lead to one server, as two nodes of a cluster lead to one queue.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.errors import BrokerUnavailable
from tests.brokers import broker_url, pytest_generate_tests
from tests.garbage import LOST_CONNECTIONS, garbage_of_this_test
from tests.polling import wait_until
from tests.servers.ports import free_ports
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.traffic import Traffic, connected

__all__ = ["broker_url", "garbage_of_this_test", "pytest_generate_tests"]

WITHOUT_BROKERS = ("embedded",)
pytestmark = LOST_CONNECTIONS


def at(url: str, *ports: int) -> str:
    """The URL with these ports of the loopback in place of its host."""
    parts = urlsplit(url)
    user, at_sign, _ = parts.netloc.rpartition("@")
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return parts._replace(netloc=f"{user}{at_sign}{hosts}").geturl()


@pytest.fixture
async def two_proxies(broker_url: str) -> AsyncIterator[tuple[FaultProxy, FaultProxy]]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(fault_proxy(broker_url))
        yield first, await stack.enter_async_context(fault_proxy(broker_url))


def _is_at(broker: Broker, proxy: FaultProxy) -> bool:
    return broker.health.connected and broker.health.host == f"127.0.0.1:{proxy.port}"


async def test_hosts_that_fail_under_load_lose_nothing_that_was_confirmed(
    broker_url: str, two_proxies: tuple[FaultProxy, FaultProxy]
) -> None:
    first, second = two_proxies
    async with connected(at(broker_url, first.port, second.port), confirm_timeout_seconds=5) as broker:
        assert broker.health.host == f"127.0.0.1:{first.port}"
        traffic = Traffic(broker)
        async with traffic.flowing(publishers=4):
            await traffic.progress()
            for used, other in ((first, second), (second, first)):
                used.refuse()
                await wait_until(partial(_is_at, broker, other))
                await traffic.progress()
                used.pass_through()
        assert traffic.confirmed <= traffic.seen
        assert traffic.outcomes["confirmed"] >= 150


async def test_host_that_is_down_at_the_start_is_passed_over(
    broker_url: str, two_proxies: tuple[FaultProxy, FaultProxy]
) -> None:
    (dead,) = free_ports(1)
    proxy, _ = two_proxies
    async with open_broker(at(broker_url, dead, proxy.port), name="test") as broker:
        await broker.ready(30)
        assert broker.health.host == f"127.0.0.1:{proxy.port}"
        assert broker.url == at(broker.url, dead, proxy.port)


async def test_each_host_that_fails_is_named_with_its_reason(broker_url: str) -> None:
    one, two = sorted(free_ports(2))
    async with open_broker(at(broker_url, one, two), name="test") as broker:
        with pytest.raises(BrokerUnavailable) as raised:
            await broker.ready(1)
        message = str(raised.value)
        assert f"127.0.0.1:{one}: " in message
        assert f"127.0.0.1:{two}: " in message
