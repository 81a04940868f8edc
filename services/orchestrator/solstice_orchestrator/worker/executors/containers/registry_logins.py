"""Decide which login fetches an image from its registry, by the file REGISTRY_LOGINS. Pure.

```toml
[[rules]]
images = ["ghcr.io/river/*"]
user = "river-ci"
password = "file:ghcr-token"
```

The first rule that matches the image, the repository and the trust in the run counts. Patterns begin with a registry, so
that a login has one registry to which it may be sent.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from solstice_common.values.globs import fits, meaningful
from solstice_common.values.references import Reference
from solstice_common.values.repo_urls import name_of
from solstice_common.values.toml_tables import TomlTable, parse_toml

NO_LOGINS: Final = b"{}"
"""The file of podman without any login."""
_REGISTRY: Final = re.compile(r"[^*?\[\]/]*[.:][^*?\[\]/]*|localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRule:
    """One login, and which images it fetches for whom."""

    images: tuple[str, ...]
    """Globs of full names; each begins with a registry."""
    user: str
    password: str = field(repr=False)
    """A reference."""
    repositories: tuple[str, ...] = ("**",)
    """Globs of `name_of`: the repositories whose jobs may run the images."""
    untrusted: bool = False
    """Whether runs of authors who may not push may run them, too."""

    def serves(self, repo_url: str, *, is_trusted: bool) -> bool:
        """Whether jobs of this repository may run its images."""
        try:
            name = name_of(repo_url)
        except ValueError:
            return False
        return (is_trusted or self.untrusted) and fits(name, self.repositories)


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """There is a login for the image, and this job does not get it."""


def login_of(
    image: str, rules: tuple[LoginRule, ...], repo_url: str, *, is_trusted: bool
) -> LoginRule | LoginRefused | None:
    """Return the login that fetches an image; None: there is none for it."""
    covering = [rule for rule in rules if fits(image, rule.images)]
    if not covering:
        return None
    return next((rule for rule in covering if rule.serves(repo_url, is_trusted=is_trusted)), LoginRefused())


def auth_file(image: str, user: str, password: str) -> bytes:
    """Return podman's file with this login for the registry of an image alone."""
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return json.dumps({"auths": {image.partition("/")[0]: {"auth": auth}}}).encode()


def parse_login_rules(content: bytes) -> tuple[LoginRule, ...]:
    """Parse the content of the file, without reading the passwords themselves.

    ConfigurationError names every wrong key, and contains no secret.
    """
    return tuple(
        LoginRule(
            images=rule.images,
            user=rule.user,
            password=rule.password,
            repositories=rule.repositories,
            untrusted=rule.untrusted,
        )
        for rule in parse_toml(content, _File).rules
    )


def _pattern(pattern: str) -> str:
    registry, slash, rest = meaningful(pattern).partition("/")
    if not _REGISTRY.fullmatch(registry) or not slash or not rest:
        raise ValueError("must begin with the registry to which the login belongs: ghcr.io/river/*")
    return pattern


def _user(user: str) -> str:
    if not user or ":" in user or not user.isprintable():
        raise ValueError("must be the name of a user, without ':'")
    return user


class _RuleTable(TomlTable):
    images: Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(min_length=1)]
    user: Annotated[str, AfterValidator(_user)]
    password: Reference
    repositories: Annotated[tuple[Annotated[str, AfterValidator(meaningful)], ...], Field(min_length=1)] = (
        "**",
    )
    untrusted: bool = False


class _File(TomlTable):
    rules: tuple[_RuleTable, ...] = ()
