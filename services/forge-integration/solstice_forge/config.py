"""Reads and checks the whole file of sources at start, and names each mistake's key.

TOML: `[sources.NAME]` for `POST /webhooks/NAME`. A secret is written as `env:NAME`, `file:PATH` (relative to
the file) or, for tests, `plain:VALUE`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority, Source
from solstice_common.messages.fields import Label
from solstice_common.values.globs import meaningful
from solstice_common.values.references import References
from solstice_common.values.toml_tables import TomlTable, parse_toml
from solstice_forge.decisions.rules import ALL_EVENTS, ALWAYS, Forks, Rule, RuleEvent
from solstice_forge.decisions.sources import (
    FORGES,
    LEAST_CHARACTERS,
    PUBLIC_URLS,
    SourceApp,
    WebhookSource,
    sources_of,
)
from solstice_forge.forges import standard_webhooks
from solstice_forge.settings import SecretSettings

MAX_FILE_BYTES: Final = 1024 * 1024


def configured_sources(settings: SecretSettings, environ: Mapping[str, str]) -> Mapping[str, WebhookSource]:
    """Return the sources by name, from the file FORGE_CONFIG or else from the environment.

    The environment gives those sources whose secret is set. Raises ConfigurationError that names every wrong key and
    says what to do.
    """
    if not settings.forge_config:
        return sources_of(settings)
    path = Path(settings.forge_config).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"FORGE_CONFIG {path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"FORGE_CONFIG {path}: is larger than {MAX_FILE_BYTES} bytes")
    try:
        return parse_sources(content, References(folder=path.parent, environ=environ))
    except ConfigurationError as error:
        raise ConfigurationError(f"FORGE_CONFIG {path}: {error}") from None


def parse_sources(content: bytes, references: References) -> Mapping[str, WebhookSource]:
    """Return the sources of the file's content; ConfigurationError has one line per mistake."""
    file = parse_toml(content, _File, explain=_explanation, context=references)
    return MappingProxyType({name: table.source(name) for name, table in file.sources.items()})


def _resolved(reference: str, info: ValidationInfo) -> str:
    assert isinstance(info.context, References)  # noqa: S101  for the type checker: parse_sources gives it
    return info.context.value(reference)


def _with_webhooks(forge: Source) -> Source:
    if forge not in FORGES:
        raise ValueError(f"must be one of {', '.join(FORGES)}")
    return forge


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ValueError("must be the forge's address, like https://forge.example")
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials: they belong into token")
    if parts.query or parts.fragment:
        raise ValueError("must end before ? and #")
    return url.rstrip("/")


Reference = Annotated[str, AfterValidator(_resolved)]
Glob = Annotated[str, AfterValidator(meaningful)]
Globs = Annotated[tuple[Glob, ...], Field(min_length=1)]
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A word in a URL, in metrics and in logs."""


class _Table(TomlTable):
    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))


class _AppTable(_Table):
    model_config = ConfigDict(alias_generator=None)

    id: int = Field(ge=1)
    private_key: Reference

    @model_validator(mode="after")
    def _pem(self) -> Self:
        if "-----BEGIN" not in self.private_key:
            raise ValueError(
                "private_key: must be the App's private key in PEM form, as GitHub lets you download it"
            )
        return self


class _RuleTable(_Table):
    name: str | None = Field(default=None, min_length=1, max_length=100)
    repositories: Globs = ALWAYS
    events: Annotated[frozenset[RuleEvent], Field(min_length=1)] = ALL_EVENTS
    branches: Globs = ALWAYS
    paths: Globs = ALWAYS
    priority: Priority | None = None
    runs_on: Label | None = None
    forks: Forks = Forks.APPROVE

    def rule(self, number: int) -> Rule:
        return Rule(
            name=self.name or f"rule {number}",
            repositories=self.repositories,
            events=self.events,
            branches=self.branches,
            paths=self.paths,
            priority=self.priority,
            runs_on=self.runs_on,
            forks=self.forks,
        )


class _SourceTable(_Table):
    forge: Annotated[Source, AfterValidator(_with_webhooks)]
    secrets: Annotated[tuple[Reference, ...], Field(min_length=1)]
    url: Annotated[str, AfterValidator(_base_url)] | None = None
    token: Reference | None = None
    app: _AppTable | None = None
    rules: tuple[_RuleTable, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.secrets) > 1 and min(map(len, self.secrets)) < LEAST_CHARACTERS:
            raise ValueError(f"secrets: one beside another needs at least {LEAST_CHARACTERS} characters")
        if self.forge is Source.GITLAB and not all(map(_usable_in_gitlab, self.secrets)):
            raise ValueError(
                "secrets: one starts with whsec_ and is not the signing token GitLab shows (base64)"
            )
        if self.app is not None and self.forge is not Source.GITHUB:
            raise ValueError("app: only GitHub has Apps; use a token")
        if self.app is not None and self.token is not None:
            raise ValueError("token: either a token or an App, not both")
        if self.token is not None and (
            self.token != self.token.strip() or not self.token.isascii() or not self.token.isprintable()
        ):
            # It is sent in a header, and the HTTP client's error would repeat it.
            raise ValueError("token: begins or ends with a space, or has characters that no token has")
        if self.token is not None and self.url is None and self.forge not in PUBLIC_URLS:
            raise ValueError("url: is missing: where is the forge that the token is for?")
        return self

    def source(self, name: str) -> WebhookSource:
        return WebhookSource(
            name=name,
            forge=FORGES[self.forge],
            secrets=self.secrets,
            url=self.url or PUBLIC_URLS.get(self.forge),
            token=self.token,
            app=None if self.app is None else SourceApp(id=self.app.id, private_key=self.app.private_key),
            rules=tuple(rule.rule(number) for number, rule in enumerate(self.rules, start=1)),
        )


class _File(_Table):
    sources: Annotated[dict[SourceName, _SourceTable], Field(min_length=1)]


def _usable_in_gitlab(secret: str) -> bool:
    return not secret.startswith(standard_webhooks.TOKEN_PREFIX) or bool(standard_webhooks.key_of(secret))


def _explanation(problem: ErrorDetails) -> str | None:
    name = problem["loc"][-1] if problem["loc"] else ""
    match problem["type"]:
        case "missing" | "too_short" if name == "sources":
            return "there is none: add a table [sources.NAME] for POST /webhooks/NAME"
        case "string_pattern_mismatch" if name == "[key]":
            return "a source's name is lower-case letters, digits, '.', '_' and '-'"
        case "string_pattern_mismatch":
            return "must be a label: letters, digits, '.', '_' and '-'"
        case _:
            return None
