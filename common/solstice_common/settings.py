"""Settings that several services share; each service adds its own and freezes the whole at start.

A setting is one field: its name in upper case is the environment variable, in kebab case the flag
(`amqp_url`, `AMQP_URL`, `--amqp-url`), its description the line in `--help` and in `docs/configuration.md`.
"""

import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from solstice_common.errors import ConfigurationError


class SolsticeSettings(BaseSettings):
    """The ground of every settings object: frozen, read from the environment, unknown variables left alone."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, validate_default=True
    )


class BrokerSettings(SolsticeSettings):
    """Where the broker is and what things are called there; the names are part of the published v1 contract."""

    amqp_url: str = Field(
        default="amqp://127.0.0.1:5672/%2f",
        description="Broker: amqp:// or amqps:// for RabbitMQ, sqlite:///FILE for the embedded one.",
    )
    amqp_exchange: str = Field(
        default="solstice.jobs",
        min_length=1,
        max_length=255,
        description="Exchange that job requests are published to.",
    )
    amqp_queue: str = Field(
        default="solstice.jobs.v1",
        min_length=1,
        max_length=255,
        description="Queue that orchestrators consume.",
    )
    amqp_routing_key: str = Field(
        default="jobrequest.v1", min_length=1, max_length=255, description="Routing key of job requests."
    )
    amqp_dlx: str = Field(
        default="solstice.dlx", min_length=1, max_length=255, description="Exchange for refused job requests."
    )
    amqp_dlq: str = Field(
        default="solstice.jobs.v1.dlq",
        min_length=1,
        max_length=255,
        description="Queue that keeps refused job requests.",
    )
    amqp_prefetch: int = Field(
        default=64, ge=1, le=65535, description="Unacknowledged deliveries per consumer."
    )
    amqp_queue_type: Literal["quorum", "classic"] = Field(
        default="quorum",
        description="Queue type of the declaration: quorum, or classic as in the first v1 services.",
    )

    @field_validator("amqp_url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if url.partition(":")[0] not in {"amqp", "amqps", "sqlite"}:
            raise ValueError("must start with amqp://, amqps:// or sqlite:///")
        return url


def _default_tokens() -> Path:
    return state_directory() / "tokens.json"


class TokenSettings(SolsticeSettings):
    """Where the tokens of the HTTP APIs are kept."""

    solstice_tokens: Path = Field(
        default_factory=_default_tokens,
        description="File of the tokens for the API and pages, written by 'solstice token'.",
    )


class AccessSettings(TokenSettings):
    """Who may use the API and pages of a service."""

    solstice_access: Literal["tokens", "open"] = Field(
        default="tokens",
        description="Who may use the API and pages: holders of tokens, and this machine alone while there are none; or open, everybody who reaches the port (behind a proxy that asks for a login).",
    )


class HttpSettings(SolsticeSettings):
    """What strangers can make a service hold."""

    http_connections: int = Field(
        default=512,
        ge=1,
        description="Connections at once, a quarter of the process's descriptors left alone; beyond, the idle of strangers are closed.",
    )
    http_head_seconds: float = Field(
        default=10.0, gt=0, description="From the first byte of a request's head to its last; else 408."
    )
    http_silence_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Longest silence of a new connection, within a body, or of a client that reads no answer.",
    )
    http_body_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1024,
        description="Bytes of all bodies under way together (one of the largest size always fits); beyond, 503 for the largest.",
    )


class LogSettings(SolsticeSettings):
    """How a service tells what it does."""

    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Logs for people (console) or for machines (json)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important log events that are shown."
    )


class ClientSettings(SolsticeSettings):
    """Where the commands that read or steer runs find an orchestrator."""

    solstice_url: str = Field(
        default="http://127.0.0.1:8081", description="Orchestrator whose HTTP API is asked."
    )
    solstice_token: SecretStr = Field(
        default=SecretStr(""), description="Token for its API, with the scopes that the command needs."
    )

    @field_validator("solstice_url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        try:
            parts = urlsplit(url)
            is_address = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address or "#" in url or "?" in url:
            # The value is not repeated: it may hold a password.
            raise ValueError("must be a URL: http://HOST:PORT")
        return url.rstrip("/")


def _web_address(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must be empty, or start with http:// or https://")
    return url


WebAddress = Annotated[str, AfterValidator(_web_address)]
"""Where people find pages by their browser; empty where nobody has said."""


def sqlite_path(url: str) -> Path:
    """The file that a `sqlite:` URL names; the one rule for brokers, inboxes and stores.

    Three slashes and a relative path, or four and an absolute one: `sqlite:///state/broker.db`,
    `sqlite:////var/lib/solstice/broker.db`. A leading `~` is the home directory. The path is taken as it stands:
    no percent escapes, no query. Raises ConfigurationError for anything else; memory cannot be shared, so
    `:memory:` is no file either.
    """
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        shown = without_password(url) if "@" in url else url
        raise ConfigurationError(f"{shown!r}: write sqlite:///FILE, or sqlite:////FILE for an absolute path")
    name = url.removeprefix(prefix)
    if not name or name.startswith(":") or name.endswith("/") or any(mark in name for mark in "?#\0"):
        raise ConfigurationError(f"{url!r}: {name!r} is no name of a file")
    return Path(name).expanduser()


def without_password(url: str) -> str:
    """The URL of a database as it may be printed: without password and options.

    Of a URL that cannot be taken apart, a '#', '/' or '[' in a password say, only the scheme is shown.
    """
    scheme = url.partition("://")[0]
    hidden = f"{scheme}://..." if "://" in url and scheme.isalnum() else "..."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return hidden
    if "@" in parts.path + parts.query + parts.fragment:
        return hidden
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def state_directory() -> Path:
    """Where the embedded default keeps its files: `SOLSTICE_HOME`, else the XDG state directory."""
    home = os.environ.get("SOLSTICE_HOME")
    if home:
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "solstice-ci"
