"""Decide which repositories' jobs get which secrets, by the file SECRETS_CONFIG.

```toml
[[rules]]
repositories = ["forge.example/river/*"]
secrets = { DEPLOY_KEY = "file:deploy-key", NPM_TOKEN = "env:NPM_TOKEN" }
```

The first rule that matches the repository and names the secret gives it. A repository is named by where it is fetched
from, since a job runs the code of that place: host and path, without scheme, user and `.git`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobRequestV1, Source
from solstice_common.values.globs import fits, meaningful
from solstice_common.values.references import Reference, References
from solstice_common.values.repo_urls import name_of
from solstice_common.values.toml_tables import TomlTable, parse_toml
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted
from solstice_orchestrator.worker.masking import LEAST_CHARACTERS

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""The name of a secret, which becomes an environment variable."""


@dataclass(frozen=True, slots=True)
class GivenSecrets:
    """The requested secrets, by name."""

    values: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldSecrets:
    """At least one requested secret is not given.

    `detail` is for the author of the workflow, `trouble` for the operator alone.
    """

    detail: str
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    repositories: tuple[str, ...]
    """Globs of `name_of`."""
    references: Mapping[str, str] = field(repr=False)
    """References to secrets, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRules:
    """The rules of the file; without one, no job gets a secret."""

    references: References
    rules: tuple[SecretRule, ...] = ()
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when the request does not say whether it is."""

    def give(self, names: Collection[str], request: JobRequestV1) -> GivenSecrets | WithheldSecrets:
        """Return the current values of the secrets; this reads files."""
        if not is_trusted(request, self.v1_trust):
            return WithheldSecrets(detail="this is code of an author who may not push, which gets no secrets")
        try:
            repository = name_of(request.repo_url)
        except ValueError as error:
            return WithheldSecrets(
                detail=f"the repository's URL {error}, and no secret is given to such a one"
            )
        known = {name: self._reference(name, repository) for name in names}
        missing = sorted(name for name, reference in known.items() if reference is None)
        if missing:
            return WithheldSecrets(
                detail=f"there is no secret {', '.join(missing)} for {repository}: the operator gives it in SECRETS_CONFIG"
            )
        values = {}
        for name, reference in known.items():
            try:
                values[name] = usable(self.references.value(reference or ""))
            except ValueError as error:
                return WithheldSecrets(
                    detail=f"the secret {name} cannot be used on this worker", trouble=str(error)
                )
        return GivenSecrets(MappingProxyType(values))

    def _reference(self, name: str, repository: str) -> str | None:
        return next(
            (
                rule.references[name]
                for rule in self.rules
                if name in rule.references and fits(repository, rule.repositories)
            ),
            None,
        )


def usable(value: str) -> str:
    """Return the value if it can be an environment variable and be masked.

    Else raises ValueError, whose message never contains the value.
    """
    if "\0" in value:
        raise ValueError("a secret cannot hold NUL: it becomes a variable of the environment")
    if len(value) < LEAST_CHARACTERS:
        raise ValueError(
            f"a secret has at least {LEAST_CHARACTERS} characters: a shorter one could not be masked"
        )
    return value


def read_secret_rules(path: str, environ: Mapping[str, str]) -> SecretRules:
    """Read the rules from a file; an empty path means no file and no secrets.

    Raises ConfigurationError, which names every wrong key.
    """
    if not path:
        return SecretRules(references=References(folder=Path(), environ=environ))
    file = Path(path).expanduser()
    try:
        return parse_secret_rules(file.read_bytes(), References(folder=file.parent, environ=environ))
    except OSError as error:
        raise ConfigurationError(
            f"SECRETS_CONFIG {file}: cannot be read: {error.strerror or error}"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"SECRETS_CONFIG {file}: {error}") from None


def parse_secret_rules(content: bytes, references: References) -> SecretRules:
    """Parse the rules in the file's content, without reading the secrets themselves."""
    return SecretRules(
        references=references,
        rules=tuple(
            SecretRule(repositories=rule.repositories, references=MappingProxyType(rule.secrets))
            for rule in parse_toml(content, _File).rules
        ),
    )


def _name(name: str) -> str:
    if not NAME.fullmatch(name) or name.startswith("SOLSTICE_"):
        raise ValueError("a secret is named like a variable: letters, digits and '_', and not SOLSTICE_...")
    return name


class _RuleTable(TomlTable):
    repositories: Annotated[tuple[Annotated[str, AfterValidator(meaningful)], ...], Field(min_length=1)]
    secrets: dict[Annotated[str, AfterValidator(_name)], Reference]


class _File(TomlTable):
    rules: tuple[_RuleTable, ...] = ()
