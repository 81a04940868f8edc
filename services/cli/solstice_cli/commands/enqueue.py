"""`solstice enqueue`: `forge-integration enqueue` for the embedded broker of `solstice up`.

Options and the environment name another broker.
"""

from typing import Final

from pydantic import Field

from solstice_cli.local import local_broker_url
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import BROKER_URL_DESCRIPTION
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.commands.enqueue_command import enqueue_command


class LocalEnqueueSettings(EnqueueSettings):
    """The settings of `enqueue` beside `solstice up`."""

    amqp_url: SecretUrl = Field(
        default_factory=local_broker_url,
        description=BROKER_URL_DESCRIPTION,
    )


enqueue: Final = enqueue_command(LocalEnqueueSettings)
