"""The settings of forge-integration: read once at start, validated whole, frozen."""

from typing import ClassVar, Final

from pydantic import Field, SecretStr, field_validator

from solstice_common.errors import ConfigurationError
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import (
    AccessSettings,
    BrokerSettings,
    HttpSettings,
    LogSettings,
    SigningSettings,
    SolsticeSettings,
    WebAddress,
    is_memory,
    is_postgresql,
    shared_url,
    sqlite_path,
    state_directory,
)
from solstice_common.tracing.trace_settings import TraceSettings

MAX_BODY_BYTES: Final = 25 * 1024 * 1024
"""GitHub's and GitLab's limit for a delivery."""

_SECRETS: Final = "several live ones, while one replaces another, are separated by commas or line breaks."


def _default_inbox_url() -> str:
    return f"sqlite:///{state_directory() / 'inbox.sqlite3'}"


class SecretSettings(SolsticeSettings):
    """The file of sources, or a secret for each forge."""

    forge_config: str = Field(
        default="",
        description="File of the sources (TOML), with their rules; with it, secrets of the environment do not count.",
    )

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


class InboxSettings(SolsticeSettings):
    """Where deliveries are stored."""

    inbox_may_be_memory: ClassVar[bool] = False
    """Whether this process alone uses the inbox."""

    forge_inbox_url: SecretUrl = Field(
        default_factory=_default_inbox_url,
        description="Where deliveries are stored: sqlite:///FILE, or postgresql://USER@HOST/DATABASE for several replicas.",
    )

    @field_validator("forge_inbox_url")
    @classmethod
    def _file_or_server(cls, url: str) -> str:
        if not is_postgresql(url) and not is_memory(url):
            try:
                sqlite_path(url)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return url if cls.inbox_may_be_memory else shared_url(url)


class RetentionSettings(SolsticeSettings):
    """How long deliveries are stored."""

    forge_retention_days: float = Field(
        default=30.0,
        ge=0,
        description="Bodies and headers of older deliveries are removed: they can no longer be replayed; 0: never.",
    )
    forge_memory_days: float = Field(
        default=365.0,
        ge=0,
        description="Older deliveries are removed; until then copies of them are recognised; 0: never.",
    )


class PagesSettings(SolsticeSettings):
    """The URLs of the pages."""

    public_url: WebAddress = Field(
        default="",
        description="Public address of the orchestrators' pages; deliveries link to their runs there.",
    )


class CallSettings(SolsticeSettings):
    """How long we wait for a forge."""

    forge_call_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Longest wait for a forge's answer; for twice as long an unanswered call may still be carried out.",
    )


class ReconcileSettings(InboxSettings, SecretSettings, CallSettings):
    """The settings of `forge-integration reconcile`: inbox, sources, and timeouts of calls."""


class DeliveriesSettings(InboxSettings, SecretSettings, PagesSettings):
    """The settings of `forge-integration deliveries`: the inbox, and the sources for a replay."""


class ForgeSettings(
    BrokerSettings,
    SigningSettings,
    SecretSettings,
    InboxSettings,
    RetentionSettings,
    PagesSettings,
    AccessSettings,
    CallSettings,
    HttpSettings,
    TraceSettings,
    LogSettings,
):
    """All settings of `forge-integration serve`."""

    inbox_may_be_memory = True

    forge_host: str = Field(default="127.0.0.1", description="Address to listen on for webhooks.")
    forge_port: int = Field(
        default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one."
    )
    forge_max_body_bytes: int = Field(
        default=MAX_BODY_BYTES, ge=1024, description="A larger webhook is refused with 413 while it arrives."
    )
    forge_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        description="At the end: time for open requests, and then for unpublished ones.",
    )
    forge_reconcile_minutes: float = Field(
        default=15.0,
        ge=0,
        description="How often sources are compared with their forges, to find missed webhooks; 0: never by itself.",
    )
    forge_retry_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Longest wait between attempts to report a status to a forge; the first ones are shorter.",
    )
    forge_give_up_hours: float = Field(
        default=24.0,
        gt=0,
        description="A status that a forge has not accepted for so long becomes a dead letter.",
    )
    forge_api_per_minute: int = Field(
        default=60,
        ge=1,
        description="Jobs that one token may ask for through the API in a minute, or at once.",
    )
    forge_api_backlog: int = Field(
        default=10_000,
        ge=1,
        description="With so many requests in the inbox and the queue the API refuses further jobs; webhooks are taken.",
    )
