"""The broker contract and its implementations; the URL's scheme chooses one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from solstice_common.errors import ConfigurationError

__all__ = [
    "Broker",
    "BrokerHealth",
    "Consumer",
    "Delivered",
    "Delivery",
    "Message",
    "PublishStatus",
    "Published",
    "QueueDepth",
    "open_broker",
]


@asynccontextmanager
async def open_broker(url: str, *, name: str, confirm_timeout_seconds: float = 30.0) -> AsyncIterator[Broker]:
    """The broker at `url`, under the connection name `name`.

    Returns at once and connects in the background.

    Raises ConfigurationError for a URL of no known scheme.
    """
    # Imported late: a process that uses one broker does not load the other's client library.
    scheme = url.partition(":")[0]
    if scheme in {"amqp", "amqps"}:
        from solstice_common.broker.rabbitmq.broker import RabbitMQBroker  # noqa: PLC0415

        async with RabbitMQBroker.open(
            url, name=name, confirm_timeout_seconds=confirm_timeout_seconds
        ) as rabbitmq:
            yield rabbitmq
    elif scheme == "sqlite":
        from solstice_common.broker.embedded.broker import EmbeddedBroker  # noqa: PLC0415

        async with EmbeddedBroker.open(url, name=name) as embedded:
            yield embedded
    else:
        raise ConfigurationError(f"AMQP_URL {url!r}: must start with amqp://, amqps:// or sqlite:///")
