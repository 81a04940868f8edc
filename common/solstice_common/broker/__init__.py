"""The broker contract and its implementations; the URL's scheme chooses one."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import structlog

from solstice_common.broker.capabilities import Capabilities
from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    DeadLetterQueue,
    DeadLetterQueues,
)
from solstice_common.broker.dropping import DroppingBroker, OnDropped
from solstice_common.broker.protocol import (
    Broker,
    BrokerHealth,
    Consumer,
    Delivered,
    Delivery,
    Message,
    Published,
    PublishStatus,
    QueueDepth,
)
from solstice_common.broker.topology_check import FoundTopology
from solstice_common.errors import ConfigurationError
from solstice_common.settings import known_broker_url
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

log = structlog.get_logger(__name__)

__all__ = [
    "Broker",
    "BrokerHealth",
    "Capabilities",
    "Consumer",
    "DeadLetter",
    "DeadLetterQueue",
    "DeadLetterQueues",
    "Delivered",
    "Delivery",
    "FoundTopology",
    "Message",
    "PublishStatus",
    "Published",
    "QueueDepth",
    "granted_rights",
    "open_broker",
    "open_dead_letter_queues",
    "read_topology",
]


@asynccontextmanager
async def open_broker(
    url: str,
    *,
    name: str,
    confirm_timeout_seconds: float = 30.0,
    on_dropped: OnDropped | None = None,
    nats_monitor_url: str = "",
    nats_sync_always: bool = False,
) -> AsyncIterator[Broker]:
    """Connect to the broker at `url` under the connection name `name`.

    Returns at once and connects in the background. With `on_dropped` there are no dead letters: a message
    that would become one is dropped, and its reason is passed to `on_dropped`. The two NATS options concern
    its health, see `BrokerSettings`.

    Raises ConfigurationError for a URL of no known scheme.
    """
    opening = _open(
        url,
        name,
        confirm_timeout_seconds,
        on_dropped,
        nats_monitor_url=nats_monitor_url,
        nats_sync_always=nats_sync_always,
    )
    async with opening as broker:
        if on_dropped is None:
            yield broker
        else:
            log.warning(LogEvent.DEAD_LETTERS_OFF, url=broker.url)
            yield DroppingBroker(broker, on_dropped)


@asynccontextmanager
async def _open(
    url: str,
    name: str,
    confirm_timeout_seconds: float,
    on_dropped: OnDropped | None,
    *,
    nats_monitor_url: str,
    nats_sync_always: bool,
) -> AsyncIterator[Broker]:
    transport = _transport(url)
    # Imported late: a process that uses one broker does not load the other's client library.
    if transport == "rabbitmq":
        from solstice_common.broker.rabbitmq.rabbitmq_broker import RabbitMQBroker  # noqa: PLC0415

        async with RabbitMQBroker.open(
            url, name=name, confirm_timeout_seconds=confirm_timeout_seconds
        ) as rabbitmq:
            yield rabbitmq
    elif transport == "redis":
        from solstice_common.broker.redis_streams.redis_broker import RedisBroker  # noqa: PLC0415

        async with RedisBroker.open(
            url, name=name, confirm_timeout_seconds=confirm_timeout_seconds, on_dropped=on_dropped
        ) as redis:
            yield redis
    elif transport == "nats":
        from solstice_common.broker.jetstream.jetstream_broker import JetStreamBroker  # noqa: PLC0415

        async with JetStreamBroker.open(
            url,
            name=name,
            confirm_timeout_seconds=confirm_timeout_seconds,
            on_dropped=on_dropped,
            monitor_url=nats_monitor_url,
            sync_always=nats_sync_always,
        ) as jetstream:
            yield jetstream
    else:
        from solstice_common.broker.embedded.embedded_broker import EmbeddedBroker  # noqa: PLC0415

        async with EmbeddedBroker.open(url, name=name) as embedded:
            yield embedded


async def read_topology(
    url: str, topology: Topology, *, management_url: str | None = None, user: str | None = None
) -> FoundTopology:
    """Read which objects of a topology exist on the broker at `url`; change nothing.

    RabbitMQ answers through its management API, see `management_api.found_topology`.

    Raises ConfigurationError for a URL of no known scheme, and what the broker's own reader raises.
    """
    transport = _transport(url)
    if transport == "rabbitmq":
        from solstice_common.broker.rabbitmq import management_api  # noqa: PLC0415

        return await management_api.found_topology(url, topology, management_url=management_url, user=user)
    if transport in {"embedded", "memory"}:
        from solstice_common.broker.embedded import embedded_topology  # noqa: PLC0415

        return await embedded_topology.found_topology(url)
    if transport == "redis":
        from solstice_common.broker.redis_streams import redis_topology  # noqa: PLC0415

        return await redis_topology.found_topology(url)
    from solstice_common.broker.jetstream.comparison import jetstream_topology  # noqa: PLC0415

    return await jetstream_topology.found_topology(url, topology)


async def granted_rights(
    url: str, rights: Collection[tuple[str, str]], *, user: str, management_url: str | None = None
) -> frozenset[tuple[str, str]]:
    """Return those of the rights that a user has at the broker of `url`.

    Changes nothing there. RabbitMQ and Redis tell an administrator, NATS only the user itself, whose URL this must then be.

    Raises ConfigurationError when the broker does not tell, and what the broker's own reader raises.
    """
    transport = _transport(url)
    if transport == "rabbitmq":
        from solstice_common.broker.rabbitmq import management_api  # noqa: PLC0415

        return await management_api.granted_rights(url, rights, user=user, management_url=management_url)
    if transport == "redis":
        from solstice_common.broker.redis_streams import granted_commands  # noqa: PLC0415

        return await granted_commands.granted_rights(url, rights, user=user)
    if transport == "nats":
        from solstice_common.broker.jetstream.comparison import user_grants  # noqa: PLC0415

        return await user_grants.granted_rights(url, rights, user=user)
    raise ConfigurationError("AMQP_URL: the embedded broker has no users: the mode of its file decides")


@asynccontextmanager
async def open_dead_letter_queues(
    url: str, *, name: str, management_url: str = ""
) -> AsyncIterator[DeadLetterQueues]:
    """Open the dead-letter queues of the broker at `url` under the connection name `name`.

    `management_url` is RabbitMQ's management API, if it is not on the broker's host.

    Raises BrokerUnavailable, and ConfigurationError for a URL of no known scheme.
    """
    transport = _transport(url)
    if transport == "rabbitmq":
        from solstice_common.broker.rabbitmq.tools.rabbitmq_dead_letters import RabbitMQDeadLetters  # noqa: PLC0415

        async with RabbitMQDeadLetters.open(url, name=name, management_url=management_url) as rabbitmq:
            yield rabbitmq
    elif transport == "redis":
        from solstice_common.broker.redis_streams.redis_dead_letters import RedisDeadLetters  # noqa: PLC0415

        async with RedisDeadLetters.open(url, name=name) as redis:
            yield redis
    elif transport == "nats":
        from solstice_common.broker.jetstream.dead_letters.jetstream_dead_letters import JetStreamDeadLetters  # noqa: PLC0415

        async with JetStreamDeadLetters.open(url, name=name) as jetstream:
            yield jetstream
    else:
        from solstice_common.broker.embedded.embedded_dead_letters import EmbeddedDeadLetters  # noqa: PLC0415

        async with EmbeddedDeadLetters.open(url, name=name) as embedded:
            yield embedded


def _transport(url: str) -> str:
    try:
        return known_broker_url(url)
    except ValueError as error:
        # The value is not repeated: it may hold a password.
        raise ConfigurationError(f"AMQP_URL: {error}") from None
