"""The settings of `solstice doctor`: those of both services."""

from pydantic import Field

from solstice_cli.local import local_broker_url
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import BROKER_URL_DESCRIPTION
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings


class SetupSettings(ForgeSettings, OrchestratorSettings):
    """Both services' settings; the broker is by default the embedded one of `solstice up`."""

    broker_may_be_memory = True

    amqp_url: SecretUrl = Field(
        default_factory=local_broker_url,
        description=BROKER_URL_DESCRIPTION,
    )
