"""Decide which credential fetches a repository, by the file GIT_CREDENTIALS. Pure.

```toml
[[rules]]
repositories = ["forge.example/river/*"]
token = "file:river-token"
```

The first rule that matches the repository, its protocol, the source of the request and the trust in it counts. Patterns
begin with a host, so that a credential has one host to which it may be sent.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from solstice_common.values.globs import fits, meaningful
from solstice_common.values.references import Reference
from solstice_common.values.repo_urls import name_of
from solstice_common.values.toml_tables import TomlTable, parse_toml

DEFAULT_USER: Final = "solstice"
"""The user beside a token. Forgejo, Gitea, GitHub and GitLab read only the token; GitLab's deploy tokens have a user."""
PROVEN_SECONDS: Final = 600.0
"""How long fetched objects and files are given to others with the same right, without a question to the host."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_HOST: Final = re.compile(r"[^*?\[\]/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccess:
    """An access token or deploy token for https."""

    token: str = field(repr=False)
    """A reference."""
    user: str = DEFAULT_USER


@dataclass(frozen=True, slots=True, kw_only=True)
class SshKeyAccess:
    """A deploy key for ssh, and the file of the host's keys."""

    ssh_key: str = field(repr=False)
    """A reference."""
    known_hosts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAccess:
    """A GitHub App, which gets a token for each repository."""

    app_id: int
    private_key: str = field(repr=False)
    """A reference."""
    api_url: str = ""
    """Empty: that of the repository's host."""


CredentialAccess: TypeAlias = TokenAccess | SshKeyAccess | AppAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRule:
    """One credential, and what it may fetch for whom."""

    repositories: tuple[str, ...]
    """Globs of `name_of`; each begins with a host."""
    access: CredentialAccess
    sources: frozenset[str] = frozenset()
    """Kinds or names of sources; empty: all."""
    schemes: frozenset[str] = frozenset({"https"})
    untrusted: bool = False
    """Whether runs of authors who may not push use it, too."""

    def covers(self, fetch: "FetchOrigin") -> bool:
        """Whether it may fetch the repository for this source, if the author is trusted."""
        if urlsplit(fetch.repo_url).scheme not in self.schemes:
            return False
        if self.sources and not self.sources & fetch.sources:
            return False
        return fits(name_of(fetch.repo_url), self.repositories)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOrigin:
    """The repository of a fetch, and who caused it."""

    repo_url: str
    """Canonical."""
    sources: frozenset[str]
    """The kind and the name of the request's source."""
    is_trusted: bool


@dataclass(frozen=True, slots=True)
class WithheldCredential:
    """There is a credential, and this fetch does not get it."""

    detail: str


CredentialChoice: TypeAlias = CredentialRule | WithheldCredential | None
"""What fetches a repository; None: no credential."""


def choose(rules: tuple[CredentialRule, ...], fetch: FetchOrigin) -> CredentialChoice:
    """Return the rule for a fetch."""
    covering = [rule for rule in rules if rule.covers(fetch)]
    usable = [rule for rule in covering if fetch.is_trusted or rule.untrusted]
    if covering and not usable:
        return WithheldCredential(
            "its credential fetches for trusted runs alone, and the author of this code may not push there"
        )
    return usable[0] if usable else None


def parse_credential_rules(content: bytes) -> tuple[CredentialRule, ...]:
    """Parse the content of the file, without reading the secrets themselves.

    ConfigurationError names every wrong key, and contains no secret.
    """
    return tuple(rule.read() for rule in parse_toml(content, _File).rules)


def _pattern(pattern: str) -> str:
    host, slash, rest = meaningful(pattern).partition("/")
    if not _HOST.fullmatch(host) or not slash or not rest:
        raise ValueError(
            "must begin with the host to which the credential belongs: forge.example/river/* or forge.example/**"
        )
    return pattern


def _user(user: str) -> str:
    if not user or ":" in user or not user.isprintable():
        raise ValueError("must be the name of a user, without ':'")
    return user


def _https(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError("must be an https URL, such as https://github.example/api/v3")
    return url


class _AppTable(TomlTable):
    id: Annotated[int, Field(gt=0)]
    private_key: Reference
    api_url: Annotated[str, AfterValidator(_https)] = ""

    def read(self) -> AppAccess:
        return AppAccess(app_id=self.id, private_key=self.private_key, api_url=self.api_url)


class _RuleTable(TomlTable):
    repositories: Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(min_length=1)]
    sources: tuple[str, ...] = ()
    untrusted: bool = False
    http: Literal["refused", "allowed"] = "refused"
    token: Reference | None = None
    user: Annotated[str, AfterValidator(_user)] | None = None
    ssh_key: Reference | None = None
    known_hosts: str | None = None
    github_app: _AppTable | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "_RuleTable":
        if [self.token, self.ssh_key, self.github_app].count(None) != len(("the", "others")):
            raise ValueError("must have one of token, ssh_key and github_app")
        if (self.ssh_key is None) != (not self.known_hosts):
            raise ValueError(
                "must have known_hosts, the file of the host's keys, with ssh_key and only with it"
            )
        if self.token is None and {"user", "http"} & self.model_fields_set:
            raise ValueError(
                "user and http are for token alone; the user of ssh stands in the repository's URL"
            )
        return self

    def read(self) -> CredentialRule:
        access, schemes = self._access()
        return CredentialRule(
            repositories=self.repositories,
            access=access,
            sources=frozenset(self.sources),
            schemes=schemes,
            untrusted=self.untrusted,
        )

    def _access(self) -> tuple[CredentialAccess, frozenset[str]]:
        if self.ssh_key is not None:
            return SshKeyAccess(ssh_key=self.ssh_key, known_hosts=self.known_hosts or ""), frozenset({"ssh"})
        if self.github_app is not None:
            return self.github_app.read(), frozenset({"https"})
        schemes = frozenset({"https", "http"} if self.http == "allowed" else {"https"})
        return TokenAccess(token=self.token or "", user=self.user or DEFAULT_USER), schemes


class _File(TomlTable):
    rules: tuple[_RuleTable, ...] = ()
