"""The hooks we listen to: a name in the URL, the forge behind it, and the secrets that prove it. Pure.

Each hook has its own URL, so nothing a sender writes chooses how it is verified: Gitea and Forgejo send GitHub's
headers as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pydantic import SecretStr

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source as Origin
from solstice_forge.decisions.rules import Rule
from solstice_forge.forges import forgejo, gitea, github, gitlab, standard_webhooks
from solstice_forge.forges.protocol import Forge
from solstice_forge.settings import SecretSettings

LEAST_CHARACTERS: Final = 8
"""Of a secret that stands beside another."""

FORGES: Final[Mapping[Origin, Forge]] = MappingProxyType(
    {forge.SOURCE: forge for forge in (github, forgejo, gitea, gitlab)}
)


PUBLIC_URLS: Final[Mapping[Origin, str]] = MappingProxyType(
    {Origin.GITHUB: "https://github.com", Origin.GITLAB: "https://gitlab.com"}
)
"""Where a forge is that has one well-known place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceApp:
    """A GitHub App: what is asked of the forge is asked in its name."""

    id: int
    private_key: str = field(repr=False)
    """PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One hook, at `POST /webhooks/{name}`, and the forge behind it."""

    name: str
    forge: Forge
    secrets: tuple[str, ...] = field(repr=False)
    """All that are live; several while one replaces another."""
    url: str | None = None
    """Base URL of the forge, without a slash at the end: `https://forge.example`. None: nothing is asked of it."""
    token: str | None = field(default=None, repr=False)
    """For its API."""
    app: SourceApp | None = None
    """Instead of a token."""
    rules: tuple[Rule, ...] = ()
    """In their order; without any, everything is built."""


def sources_of(settings: SecretSettings) -> Mapping[str, Source]:
    """The sources whose secret is set, by name; ConfigurationError for one that cannot be meant."""
    secrets = {
        Origin.GITHUB: _live("GITHUB_WEBHOOK_SECRET", settings.github_webhook_secret),
        Origin.FORGEJO: _live("FORGEJO_WEBHOOK_SECRET", settings.forgejo_webhook_secret),
        Origin.GITEA: _live("GITEA_WEBHOOK_SECRET", settings.gitea_webhook_secret),
        Origin.GITLAB: (
            *_live("GITLAB_WEBHOOK_SECRET", settings.gitlab_webhook_secret),
            *_signing_tokens(settings),
        ),
    }
    return MappingProxyType(
        {
            origin.value: Source(
                name=origin.value, forge=FORGES[origin], secrets=live, url=PUBLIC_URLS.get(origin)
            )
            for origin, live in secrets.items()
            if live
        }
    )


def how_to_configure(name: str) -> str:
    """What to tell somebody who calls a source that does not exist."""
    if name not in set(FORGES):
        return (
            "there is no source of that name: the file FORGE_CONFIG names them, and without it they are "
            f"{', '.join(sorted(FORGES))}"
        )
    also = " or GITLAB_SIGNING_TOKEN" if name == Origin.GITLAB else ""
    return (
        f"the source {name} has no secret: set {name.upper()}_WEBHOOK_SECRET{also} here and in the forge, or name it in "
        "FORGE_CONFIG where that is used"
    )


def _live(name: str, setting: SecretStr) -> tuple[str, ...]:
    """The live secrets of a setting. A space is part of a secret: people use passphrases."""
    parts = setting.get_secret_value().replace("\n", ",").split(",")
    live = tuple(stripped for part in parts if (stripped := part.strip()))
    if len(live) > 1 and min(map(len, live)) < LEAST_CHARACTERS:
        # Were it one passphrase with a comma in it, a word of it would do for a forged signature.
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
