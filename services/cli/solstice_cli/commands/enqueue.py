"""`solstice enqueue`: as `forge-integration enqueue`, but for the embedded broker of `solstice up` unless told otherwise."""

from typing import Final

from pydantic import Field

from solstice_cli.local import local_broker_url
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.commands.enqueue_command import enqueue_command


class LocalEnqueueSettings(EnqueueSettings):
    """The settings of `enqueue` beside `solstice up`."""

    amqp_url: str = Field(
        default_factory=local_broker_url,
        description="Broker: amqp:// or amqps:// for RabbitMQ, sqlite:///FILE for the embedded one.",
    )


enqueue: Final = enqueue_command(LocalEnqueueSettings)
