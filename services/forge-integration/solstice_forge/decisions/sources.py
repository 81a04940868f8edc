"""The hooks we listen to: name, forge and secrets of each. Pure.

Each hook has its own URL, so the sender cannot choose how a call is verified: Gitea and Forgejo send GitHub's headers
as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from pydantic import SecretStr

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.tracing.samplers import Sampler
from solstice_forge.decisions.rules import Rule
from solstice_forge.forges import github, gitlab, standard_webhooks
from solstice_forge.forges.gitea_family import FORGEJO, GITEA
from solstice_forge.forges.protocol import Forge
from solstice_forge.settings import SecretSettings

LEAST_CHARACTERS: Final = 8
"""The shortest secret that may be one of several."""

FORGES: Final[Mapping[Source, Forge]] = MappingProxyType(
    {forge.SOURCE: forge for forge in (github, FORGEJO, GITEA, gitlab)}
)


PUBLIC_URLS: Final[Mapping[Source, str]] = MappingProxyType(
    {Source.GITHUB: "https://github.com", Source.GITLAB: "https://gitlab.com"}
)
"""The URLs of forges that have one well-known address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceApp:
    """The GitHub App that signs in for a source."""

    id: int
    private_key: str = field(repr=False)
    """PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSource:
    """One hook, at `POST /webhooks/{name}`, and the forge behind it."""

    name: str
    forge: Forge
    secrets: tuple[str, ...] = field(repr=False)
    """All secrets in use; there are several while one replaces another."""
    url: str | None = None
    """Base URL of the forge, without a slash at the end: `https://forge.example`. None: the forge is never called."""
    token: str | None = field(default=None, repr=False)
    """The token for the forge's API."""
    app: SourceApp | None = None
    """It replaces a token."""
    rules: tuple[Rule, ...] = ()
    """The rules in their order; without any, everything is built."""
    sampler: Sampler | None = None
    """Which of its requests are traced; None when none is, and messages have the webhook's own `traceparent`."""


def sources_of(settings: SecretSettings) -> Mapping[str, WebhookSource]:
    """Return the sources whose secret is set, by name.

    Raises ConfigurationError for a source that cannot be meant.
    """
    secrets = {
        Source.GITHUB: _live("GITHUB_WEBHOOK_SECRET", settings.github_webhook_secret),
        Source.FORGEJO: _live("FORGEJO_WEBHOOK_SECRET", settings.forgejo_webhook_secret),
        Source.GITEA: _live("GITEA_WEBHOOK_SECRET", settings.gitea_webhook_secret),
        Source.GITLAB: (
            *_live("GITLAB_WEBHOOK_SECRET", settings.gitlab_webhook_secret),
            *_signing_tokens(settings),
        ),
    }
    return MappingProxyType(
        {
            origin.value: WebhookSource(
                name=origin.value, forge=FORGES[origin], secrets=live, url=PUBLIC_URLS.get(origin)
            )
            for origin, live in secrets.items()
            if live
        }
    )


def traced_sources(
    sources: Mapping[str, WebhookSource], sampler: Sampler | None
) -> Mapping[str, WebhookSource]:
    """Return the sources with what says which of their requests are traced."""
    return MappingProxyType({name: replace(source, sampler=sampler) for name, source in sources.items()})


def unverified_source(name: str) -> WebhookSource | None:
    """Return the source of a forge of that name, without its secrets."""
    if name not in set(FORGES):
        return None
    origin = Source(name)
    return WebhookSource(name=name, forge=FORGES[origin], secrets=(), url=PUBLIC_URLS.get(origin))


def how_to_configure(name: str) -> str:
    """Return the answer to a call for a source that does not exist."""
    if name not in set(FORGES):
        return (
            "there is no source of that name: the file FORGE_CONFIG names them, and without it they are "
            f"{', '.join(sorted(FORGES))}"
        )
    also = " or GITLAB_SIGNING_TOKEN" if name == Source.GITLAB else ""
    return (
        f"the source {name} has no secret: set {name.upper()}_WEBHOOK_SECRET{also} here and in the forge, or name it in "
        "FORGE_CONFIG where that is used"
    )


def _live(name: str, setting: SecretStr) -> tuple[str, ...]:
    """Return the secrets in use from a setting.

    A space is part of a secret: people use passphrases.
    """
    parts = setting.get_secret_value().replace("\n", ",").split(",")
    live = tuple(stripped for part in parts if (stripped := part.strip()))
    if len(live) > 1 and min(map(len, live)) < LEAST_CHARACTERS:
        # If it were one passphrase with a comma, a part of it would be enough to forge a signature.
        raise ConfigurationError(
            f"{name}: holds several secrets (commas and line breaks separate them), and one is shorter than "
            f"{LEAST_CHARACTERS} characters; if it is one secret, take one without commas"
        )
    return live


def _signing_tokens(settings: SecretSettings) -> tuple[str, ...]:
    tokens = _live("GITLAB_SIGNING_TOKEN", settings.gitlab_signing_token)
    if not all(standard_webhooks.key_of(token) for token in tokens):
        raise ConfigurationError("GITLAB_SIGNING_TOKEN: must be the token GitLab shows, whsec_ and base64")
    prefix = standard_webhooks.TOKEN_PREFIX
    return tuple(prefix + token.removeprefix(prefix) for token in tokens)
