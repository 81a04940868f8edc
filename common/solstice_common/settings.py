"""Settings that several services share.

Each service adds its own and freezes the whole at start.

A setting is one field: its name in upper case is the environment variable, in kebab case the flag
(`amqp_url`, `AMQP_URL`, `--amqp-url`), its description the line in `--help` and in `docs/configuration.md`.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from solstice_common.addresses.hosts import first_host_only
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.hidden_secrets import SecretUrl


class SolsticeSettings(BaseSettings):
    """The base class of all settings: frozen, read from the environment, unknown variables ignored."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, validate_default=True
    )


BROKER_SCHEMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "amqp": "rabbitmq",
        "amqps": "rabbitmq",
        "redis": "redis",
        "rediss": "redis",
        "nats": "nats",
        "tls": "nats",
        "sqlite": "embedded",
        "memory": "memory",
    }
)
"""The broker behind each scheme of `AMQP_URL`, by the name of its capabilities."""
BROKER_URLS: Final = (
    "amqp:// or amqps:// for RabbitMQ, redis:// or rediss:// for Redis and Valkey, nats:// or tls:// for NATS, "
    "sqlite:///FILE for the embedded one"
)
"""The schemes in words for people, for all descriptions and errors."""
BROKER_URL_DESCRIPTION: Final = f"Broker: {BROKER_URLS}."


def known_broker_url(url: str) -> str:
    """Return the broker that a URL's scheme names; ValueError when it names none."""
    transport = BROKER_SCHEMES.get(url.partition(":")[0])
    if transport is None:
        raise ValueError(f"must start with {BROKER_URLS}")
    return transport


def is_memory(url: str) -> bool:
    """Whether the URL names what is in the memory of the process that opens it."""
    return url.partition(":")[0] == "memory"


def memory_notice(part: str, setting: str, url: str) -> Mapping[str, str]:
    """Return the notice of `/readyz` about a database in memory; none about another."""
    if not is_memory(url):
        return {}
    return {
        part: f"degraded: it is in the memory of this process, and ends with it: {setting}=sqlite:///FILE keeps it"
    }


def shared_url(url: str) -> str:
    """Return the URL of what several processes can open; ValueError for memory."""
    if is_memory(url):
        raise ValueError(
            "memory: is only within the process that opens it, as 'solstice up --broker memory: --store memory: --inbox memory:' "
            "does: write sqlite:///FILE for what the processes of one machine share"
        )
    return url


def with_password_file(url: str, path: str) -> str:
    """Return the broker's URL with the file of its password.

    ValueError where it has no password, or names another file.
    """
    before, mark, query = url.partition("?")
    if url.startswith(("sqlite:", "memory:")):
        raise ValueError("the embedded broker of AMQP_URL has no password: leave it empty")
    named = dict(parse_qsl(query)).get("password_file")
    path = str(Path(path).absolute())
    if named not in {None, path}:
        raise ValueError("the password_file of AMQP_URL is another one: name the file once")
    if named is not None:
        return url
    return f"{before}?{query}{'&' if mark and query else ''}password_file={quote(path)}"


def _is_plain_http(url: str) -> bool:
    """Whether an HTTP URL names a host, and neither query nor fragment."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and "?" not in url and "#" not in url
    except ValueError:
        return False


# What is refused below is not repeated: it may hold a password.
def _web_address(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must be empty, or start with http:// or https://")
    if url and (not _is_plain_http(url) or re.search(r"[\s@\\]", url)):
        raise ValueError("must be a URL for browsers, without user and password: https://HOST/PATH")
    return url


WebAddress = Annotated[str, AfterValidator(_web_address)]
"""A web address that browsers or programs reach; empty when it is not set."""


LONGEST_NAME: Final = 246
"""Characters of an exchange, queue or key: of AMQP's 255 bytes, the name of a priority class may take nine."""


class BrokerSettings(SolsticeSettings):
    """The address of the broker, and the names of its objects.

    The names are part of the published v1 contract.
    """

    broker_may_be_memory: ClassVar[bool] = False
    """Whether all that publishes and consumes is in this process."""

    amqp_url: SecretUrl = Field(
        default="amqp://127.0.0.1:5672/%2f",
        description=BROKER_URL_DESCRIPTION,
    )
    amqp_password_file: str = Field(
        default="",
        description="File with the password of AMQP_URL's user, read again for each connection; as ?password_file= in the URL.",
    )
    amqp_exchange: str = Field(
        default="solstice.jobs",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Exchange that job requests are published to.",
    )
    amqp_queue: str = Field(
        default="solstice.jobs.v1",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Queue that orchestrators consume.",
    )
    amqp_routing_key: str = Field(
        default="jobrequest.v1",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Routing key of job requests.",
    )
    amqp_dlx: str = Field(
        default="solstice.dlx",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Exchange for refused job requests.",
    )
    amqp_dlq: str = Field(
        default="solstice.jobs.v1.dlq",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Queue of refused job requests.",
    )
    amqp_priorities: Literal["one", "split"] = Field(
        default="one",
        description="one: a queue for all requests, whose order the store decides. split: a queue and dead-letter queue for each priority class, taken from in weighted order.",
    )
    amqp_prefetch: int = Field(
        default=64, ge=1, le=65535, description="Unacknowledged deliveries per consumer."
    )
    amqp_queue_type: Literal["quorum", "classic"] = Field(
        default="quorum",
        description="Queue type of the declaration: quorum, or classic as in the first v1 services.",
    )
    dead_letter_enabled: bool = Field(
        default=True,
        description="Keep refused and exhausted messages as dead letters; else they are dropped, logged and counted.",
    )
    broker_require_durable: bool = Field(
        default=False,
        description="/readyz answers 503 while the broker is less durable than it could be (degraded), not only 200 with a notice.",
    )
    nats_monitor_url: WebAddress = Field(
        default="",
        description="Monitoring port of NATS (http://HOST:8222), which shows whether it syncs before it confirms; empty for none.",
    )
    nats_sync_always: bool = Field(
        default=False,
        description="Your word that NATS has sync_interval: always, where its monitoring port cannot be reached.",
    )

    @field_validator("amqp_url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        known_broker_url(url)
        return url if cls.broker_may_be_memory else shared_url(url)

    @field_validator("amqp_password_file")
    @classmethod
    def _fits_the_url(cls, path: str, info: ValidationInfo) -> str:
        if path and "amqp_url" in info.data:
            with_password_file(info.data["amqp_url"], path)
        return path

    @model_validator(mode="after")
    def _name_password_file(self) -> Self:
        if self.amqp_password_file:
            # In the URL, so that code which opens a broker needs nothing else.
            object.__setattr__(self, "amqp_url", with_password_file(self.amqp_url, self.amqp_password_file))
        return self


class SigningSettings(SolsticeSettings):
    """The keys that sign requests."""

    signing_keys: SecretStr = Field(
        default=SecretStr(""),
        description="Private keys that sign requests and cancels: files of 'solstice keys create', by commas, or one key as JSON. "
        "The first signs. Empty: nothing is signed.",
    )


class VerifySettings(SolsticeSettings):
    """The keys that verify requests."""

    verify_keys: str = Field(
        default="",
        description="File of the public keys, with their scopes, one of which must have signed a request or cancel; read again "
        "when it changes. Empty: none need be signed.",
    )


def _default_tokens() -> Path:
    return state_directory() / "tokens.json"


class TokenSettings(SolsticeSettings):
    """Where the tokens of the HTTP APIs are stored."""

    solstice_tokens: Path = Field(
        default_factory=_default_tokens,
        description="File of the tokens for the API and pages, written by 'solstice token'.",
    )


class AccessSettings(TokenSettings):
    """Who may use the API and pages of a service."""

    solstice_access: Literal["tokens", "open"] = Field(
        default="tokens",
        description="Who may use the API and pages. tokens: holders of tokens, or this machine while there are none; open: everyone who reaches the port (for a proxy that asks for a login).",
    )


class HttpSettings(SolsticeSettings):
    """Limits on the resources that HTTP callers can take."""

    http_connections: int = Field(
        default=512,
        ge=1,
        description="Most connections at once, at most three quarters of the process's descriptors; then idle ones of unknown callers are closed.",
    )
    http_head_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Longest time from the first byte of a request's head to its last; then 408.",
    )
    http_silence_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Longest silence of a new connection, within a body, or of a client that reads no answer.",
    )
    http_body_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1024,
        description="Most bytes of all arriving bodies together (one of the largest size always fits); then 503 for the largest.",
    )


class LogSettings(SolsticeSettings):
    """How a service logs."""

    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Logs for people (console) or for machines (json)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important log events that are shown."
    )


def http_address(url: str) -> str:
    """Return an http or https URL; any other raises ValueError, which never repeats it."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    if not _is_plain_http(url):
        raise ValueError("must be a URL: http://HOST:PORT")
    return url.rstrip("/")


class ClientSettings(SolsticeSettings):
    """The orchestrator's address and token, for commands that read or change runs."""

    solstice_url: SecretUrl = Field(
        default="http://127.0.0.1:8081", description="Orchestrator whose HTTP API is asked."
    )
    solstice_token: SecretStr = Field(
        default=SecretStr(""), description="Token for its API, with the scopes that the command needs."
    )

    @field_validator("solstice_token")
    @classmethod
    def _fits_a_header(cls, token: SecretStr) -> SecretStr:
        if re.search("[^!-~]", token.get_secret_value()):  # the HTTP client's error would repeat it
            raise ValueError("must be as 'solstice token create' prints it, without spaces and line breaks")
        return token

    @field_validator("solstice_url")
    @classmethod
    def _http(cls, url: str) -> str:
        return http_address(url)


def is_postgresql(url: str) -> bool:
    """Whether the URL of a database is one of PostgreSQL, which has two schemes.

    Source: postgresql.org/docs/current/libpq-connect.html (connection URIs).
    """
    return url.partition(":")[0] in {"postgresql", "postgres"}


def sqlite_path(url: str) -> Path:
    """The file that a `sqlite:` URL names; the one rule for brokers, inboxes and stores.

    Three slashes and a relative path, or four and an absolute one: `sqlite:///state/broker.db`,
    `sqlite:////var/lib/solstice/broker.db`. A leading `~` is the home directory. The path is used as it is:
    no percent escapes, no query. Raises ConfigurationError for anything else; memory cannot be shared, so
    `:memory:` is no file either.
    """
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        shown = without_password(url) if any(mark in url for mark in "@?#") else url
        raise ConfigurationError(f"{shown!r}: write sqlite:///FILE, or sqlite:////FILE for an absolute path")
    name = url.removeprefix(prefix)
    if not name or name.startswith(":") or name.endswith("/") or any(mark in name for mark in "?#\0"):
        raise ConfigurationError(f"{url!r}: {name!r} is no name of a file")
    return Path(name).expanduser()


def without_password(url: str) -> str:
    """Return the URL of a database as it may be printed: without password and options.

    Only the scheme is shown of a URL that cannot be parsed, for example one with '#', '/' or '[' in its
    password.
    """
    scheme = url.partition("://")[0]
    hidden = f"{scheme}://..." if "://" in url and scheme.isalnum() else "..."
    try:
        parts = urlsplit(url)
        _ = urlsplit(first_host_only(url)).port
    except ValueError:
        return hidden
    if "@" in parts.path + parts.query + parts.fragment:
        return hidden
    if "://" not in url:
        return url.partition("?")[0]
    # A user without a password before the host of a NATS server is a token.
    is_token = parts.scheme in {"nats", "tls"} and parts.password is None
    user = f"{parts.username}@" if parts.username and not is_token else ""
    return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def state_directory() -> Path:
    """Return where the embedded default keeps its files: `SOLSTICE_HOME`, else the XDG state directory."""
    home = os.environ.get("SOLSTICE_HOME")
    if home:
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "solstice-ci"
