"""The settings of forge-integration: read once at start, validated whole, frozen."""

from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from solstice_common.errors import ConfigurationError
from solstice_common.settings import BrokerSettings, SolsticeSettings, sqlite_path, state_directory

MAX_BODY_BYTES: Final = 25 * 1024 * 1024
"""What GitHub and GitLab cap a delivery at."""

_SECRETS: Final = "several live ones, while one replaces another, are separated by commas or line breaks."


def _default_inbox_url() -> str:
    return f"sqlite:///{state_directory() / 'inbox.sqlite3'}"


class SecretSettings(SolsticeSettings):
    """Whom to believe: a source exists once it has a secret."""

    github_webhook_secret: SecretStr = Field(
        default=SecretStr(""), description=f"Secret of GitHub's webhooks; {_SECRETS}"
    )
    forgejo_webhook_secret: SecretStr = Field(
        default=SecretStr(""), description=f"Secret of Forgejo's webhooks; {_SECRETS}"
    )
    gitea_webhook_secret: SecretStr = Field(
        default=SecretStr(""), description=f"Secret of Gitea's webhooks; {_SECRETS}"
    )
    gitlab_webhook_secret: SecretStr = Field(
        default=SecretStr(""), description=f"Secret token of GitLab's webhooks; {_SECRETS}"
    )
    gitlab_signing_token: SecretStr = Field(
        default=SecretStr(""),
        description=f"Signing token (whsec_...) of GitLab's webhooks, from GitLab 19.0; {_SECRETS}",
    )


class ForgeSettings(BrokerSettings, SecretSettings):
    """Where to listen, where to keep deliveries, whom to believe."""

    forge_host: str = Field(default="127.0.0.1", description="Address to listen on for webhooks.")
    forge_port: int = Field(
        default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one."
    )
    forge_inbox_url: str = Field(
        default_factory=_default_inbox_url, description="Where deliveries are kept: sqlite:///FILE."
    )
    forge_max_body_bytes: int = Field(
        default=MAX_BODY_BYTES, ge=1024, description="A larger webhook is refused with 413 while it arrives."
    )
    forge_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        description="At the end: time for open requests, and then for what is not with the broker yet.",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Logs for people (console) or for machines (json)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important log events that are shown."
    )

    @field_validator("forge_inbox_url")
    @classmethod
    def _sqlite_file(cls, url: str) -> str:
        try:
            sqlite_path(url)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return url
