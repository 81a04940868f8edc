"""Reads GIT_CREDENTIALS and the secrets that it names, whenever they change."""

import os
import stat
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobRequestV1, Source
from solstice_common.runtime.replaced_file import OTHERS_WRITE
from solstice_common.signing.key_file import KeyFile
from solstice_common.values.references import References, split
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted
from solstice_orchestrator.git.credentials.credential_rules import (
    AppAccess,
    CredentialChoice,
    CredentialRule,
    FetchOrigin,
    SshKeyAccess,
    WithheldCredential,
    choose,
    parse_credential_rules,
)
from solstice_orchestrator.git.credentials.installation_tokens import (
    InstallationTokens,
    NoToken,
    NoTokenForNow,
)
from solstice_orchestrator.git.credentials.ssh_agent import SshCredential
from solstice_orchestrator.git.credentials.ssh_signing import SshSigner, deploy_key
from solstice_orchestrator.log_events import LogEvent

log = structlog.get_logger(__name__)

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCredential:
    """A user and a password or token for one host."""

    user: str
    password: str = field(repr=False)
    refused: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Called when the host has refused it; a later fetch has another one. None: there is no other."""

    @property
    def authorization(self) -> str:
        """The value of the header Authorization."""
        return f"Basic {self._encoded}"

    @property
    def _encoded(self) -> str:
        return b64encode(f"{self.user}:{self.password}".encode()).decode()

    def masked(self, text: str) -> str:
        """Replace the secret in what a server, which has seen it, may have said."""
        return text.replace(self.password, "***").replace(self._encoded, "***")


class UnusableCredential(Exception):
    """A rule gives no credential; the message is for the author of the job."""

    def __init__(self, detail: str, *, is_for_now: bool = False) -> None:
        super().__init__(detail)
        self.is_for_now = is_for_now
        """Whether it will give one later, without any change to it: the forge is away, or at its rate limit."""


class GitCredentials:
    """The credentials of this orchestrator; without a file, none."""

    def __init__(
        self, path: str, environ: Mapping[str, str], *, v1_trust: frozenset[Source] = V1_TRUST
    ) -> None:
        """Raise ConfigurationError for a file that cannot be used."""
        file = Path(path).expanduser()
        self._v1_trust = v1_trust
        self._references = References(folder=file.parent, environ=environ)
        self._rules = KeyFile(file, _read_rules) if path else None
        self._apps = InstallationTokens()

    def choice(self, request: JobRequestV1) -> CredentialChoice:
        """Return the rule for what a request fetches."""
        return self._choose(self._origin(request))

    def choice_of_submodule(self, choice: CredentialChoice, submodule: JobRequestV1) -> CredentialChoice:
        """Return the rule for a submodule: that of its repository, if it covers both."""
        if isinstance(choice, CredentialRule) and not choice.covers(self._origin(submodule)):
            return WithheldCredential(
                "the rule whose credential fetches the repository does not name this one"
            )
        return choice

    def _origin(self, request: JobRequestV1) -> FetchOrigin:
        return FetchOrigin(
            repo_url=request.repo_url,
            sources=frozenset({request.source, request.source_name or request.source}),
            is_trusted=is_trusted(request, self._v1_trust),
        )

    def choice_of_schedule(self, repo_url: str) -> CredentialChoice:
        """Return the rule for a look-up of a branch, which operators ask for."""
        return self._choose(
            FetchOrigin(repo_url=repo_url, sources=frozenset({Source.MANUAL}), is_trusted=True)
        )

    def _choose(self, fetch: FetchOrigin) -> CredentialChoice:
        return None if self._rules is None else choose(self._rules.current(), fetch)

    async def read(self, rule: CredentialRule, repo_url: str) -> HttpCredential | SshCredential:
        """Return the present credential of a rule for a repository; raises UnusableCredential."""
        access = rule.access
        try:
            if isinstance(access, SshKeyAccess):
                user = urlsplit(repo_url).username
                if user is None:
                    raise ValueError(f"{repo_url} names no user: write ssh://git@...")  # noqa: TRY301
                signer = SshSigner(key=deploy_key(self._secret(access.ssh_key)), user=user)
                known_hosts = self._references.value(f"file:{access.known_hosts}")
                return SshCredential(signer=signer, known_hosts=f"{known_hosts}\n")
            if isinstance(access, AppAccess):
                return await self._of_app(access, self._secret(access.private_key), repo_url)
            token = self._secret(access.token)
            if not token.isprintable():
                raise ValueError("a token has one line, without control characters")  # noqa: TRY301
            return HttpCredential(user=access.user, password=token)
        except (ValueError, ConfigurationError) as error:
            log.error(LogEvent.CREDENTIAL_UNUSABLE, detail=str(error))  # noqa: TRY400  one line, not a traceback
            raise UnusableCredential("it cannot be used on this worker; its log says why") from None
        except NoToken as error:
            raise UnusableCredential(str(error), is_for_now=isinstance(error, NoTokenForNow)) from None

    async def _of_app(self, access: AppAccess, private_key: str, repo_url: str) -> HttpCredential:
        token = await self._apps.token(access.app_id, private_key, access.api_url, repo_url)
        forget = partial(self._apps.forget, token)
        return HttpCredential(user="x-access-token", password=token, refused=forget)

    def _secret(self, reference: str) -> str:
        kind, rest = split(reference)
        if kind == "file":
            _check_private(self._references.folder / Path(rest).expanduser())
        return self._references.value(reference)


NO_CREDENTIALS: Final = GitCredentials("", {})


def _read_rules(path: Path) -> tuple[CredentialRule, ...]:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise ConfigurationError(
            f"GIT_CREDENTIALS {path}: cannot be read: {error.strerror or error}"
        ) from None
    if mode & OTHERS_WRITE:
        raise ConfigurationError(
            f"GIT_CREDENTIALS {path}: is not used, since others may write to the file: chmod go-w {path}"
        )
    try:
        return parse_credential_rules(content)
    except ConfigurationError as error:
        raise ConfigurationError(f"GIT_CREDENTIALS {path}: {error}") from None


def _check_private(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror or error}") from None
    if mode & _OTHERS:
        raise ValueError(f"the file {path} is not used, since others may read it: chmod 600 {path}")
