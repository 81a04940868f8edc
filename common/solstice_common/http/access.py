"""Decides who may use a service's API and pages.

A caller needs a token. While there are no tokens, only callers on this machine are answered.
"""

import asyncio
import base64
import binascii
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.http.local_callers import is_loopback
from solstice_common.http.token_file import TokenFile
from solstice_common.http.tokens import DeniedReason, Token, TokenScope, find
from solstice_common.settings import AccessSettings
from solstice_common.telemetry.log_events import LogEvent

log = structlog.get_logger(__name__)

LOCAL: Final = "@local"
"""The name of a caller without a token; no token can have it."""
REALM: Final = 'realm="solstice"'
NONE_LEFT: Final = "there were tokens here and none is left, so all are refused, this machine too"
_MAKE_ONE: Final = "'solstice token create NAME --scope {}' makes one"
WATCH_SECONDS: Final = 1.0
"""Seconds between two checks whether the last token is gone; each costs one `stat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller whose request is allowed; `name` is the token's."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The caller may not do this.

    `status` is 401 or 403, `reason` one word of a closed list, `detail` says what to do.

    `challenge` is the value of `WWW-Authenticate` (RFC 9110, section 11.6.1; RFC 6750, section 3).
    """

    status: int
    reason: DeniedReason
    detail: str
    challenge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access rule of one service, with its current tokens."""

    file: TokenFile
    is_open: bool = False
    """Every caller is admitted: a proxy in front of us checks who they are."""
    clock: Callable[[], float] = field(default=time.time)

    @property
    def is_local_only(self) -> bool:
        """Whether there is no token, so that only this machine is answered."""
        return not self.is_open and not self.file.current() and not self.file.ever_had_tokens

    @property
    def is_shut(self) -> bool:
        """Whether there were tokens and none is left, so that no caller is answered."""
        return not self.is_open and not self.file.current() and self.file.ever_had_tokens

    def notices(self) -> Mapping[str, str]:
        """Return what `/readyz` says about access.

        It is no lack of readiness: webhooks and jobs need no token.
        """
        if not self.is_shut:
            return {}
        return {"access": f"{NONE_LEFT} ({self.file.path}): {_MAKE_ONE.format(TokenScope.READ)}"}

    def admit(
        self, needed: TokenScope, *, authorization: str | None, is_local: bool, logged: bool = True
    ) -> Caller | Denied:
        """Whether a request with this `Authorization` may do what needs that scope.

        A refusal is logged, unless `logged` is false, for a check before any request that needs the scope.
        """
        if self.is_open:
            return Caller(name=LOCAL)
        verdict = admit(
            self.file.current(),
            needed,
            authorization=authorization,
            is_local=is_local and not self.file.ever_had_tokens,
            now=self.clock(),
        )
        if isinstance(verdict, Denied) and verdict.reason == "no_tokens_yet" and self.file.ever_had_tokens:
            verdict = Denied(
                status=401,
                reason="no_tokens_left",
                detail=f"{NONE_LEFT}: {_MAKE_ONE.format(needed)}",
                challenge=f"Bearer {REALM}",
            )
        # Callers without a token are many and unknown; one with a wrong token needs help or attention.
        if logged and isinstance(verdict, Denied) and authorization is not None:
            log.warning(
                LogEvent.ACCESS_DENIED, needed=needed.value, reason=verdict.reason, detail=verdict.detail
            )
        return verdict


def access_rules(settings: AccessSettings) -> Access:
    """Return who has access by the settings. ConfigurationError for an unreadable token file."""
    return Access(file=TokenFile(settings.solstice_tokens), is_open=settings.solstice_access == "open")


def admit(
    tokens: Sequence[Token], needed: TokenScope, *, authorization: str | None, is_local: bool, now: float
) -> Caller | Denied:
    """Decide whether a caller may do this.

    Without any tokens, callers on this machine may do everything, and others nothing.

    A bearer token must be valid in any case. A login is ignored while there are no tokens: it may be one for
    a proxy in front of us.
    """
    scheme, presented = _credentials(authorization)
    if presented is None or (not tokens and scheme != "bearer"):
        return _anonymous(tokens, needed, is_local=is_local)
    token = find(tokens, presented)
    if token is None:
        detail = "this token is not known here: was it revoked, or is it of another service?"
        return _denied("unknown_token", detail)
    if token.has_expired(now):
        return _denied("expired_token", f"the token {token.name!r} has expired: {_MAKE_ONE.format(needed)}")
    if needed not in token.scopes:
        return Denied(
            status=403,
            reason="missing_scope",
            detail=f"the token {token.name!r} lacks the scope {needed.value!r}: {_MAKE_ONE.format(needed)}",
            challenge=f'Bearer {REALM}, error="insufficient_scope", scope="{needed.value}"',
        )
    return Caller(name=token.name)


def check_listening(access: Access, *, host: str, setting: str) -> None:
    """Raise ConfigurationError when we would serve other machines without a token."""
    if access.is_local_only and not is_loopback(host):
        raise ConfigurationError(
            f"{setting} is {host!r}, but there is no token in {access.file.path}, so every caller there would be "
            f"unknown. Make one ('solstice token create NAME --scope read'), or listen on 127.0.0.1; behind a proxy that "
            "asks people for a login, SOLSTICE_ACCESS=open lets in every caller"
        )


def log_access(access: Access, *, service: str) -> bool:
    """Log who may call when tokens do not decide; return whether no caller may."""
    if access.is_open:
        log.warning(LogEvent.ACCESS_OPEN, service=service)
    elif access.is_shut:
        log.warning(LogEvent.NO_TOKENS_LEFT, service=service, tokens=str(access.file.path), detail=NONE_LEFT)
        return True
    elif access.is_local_only:
        log.info(LogEvent.ACCESS_LOCAL, service=service, tokens=str(access.file.path))
    return False


@contextlib.asynccontextmanager
async def logged_access(access: Access, *, service: str) -> AsyncIterator[None]:
    """Log when tokens do not decide: at the start, and when the last goes."""
    was_shut = log_access(access, service=service)
    watching = asyncio.create_task(_watch(access, service, was_shut=was_shut), name=f"{service}-access")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(access: Access, service: str, *, was_shut: bool) -> None:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if access.is_shut and not was_shut:
            log_access(access, service=service)
        was_shut = access.is_shut


def _anonymous(tokens: Sequence[Token], needed: TokenScope, *, is_local: bool) -> Caller | Denied:
    if tokens:
        return Denied(
            status=401,
            reason="token_needed",
            detail=f"send a token with the scope {needed.value!r}, as 'Authorization: Bearer TOKEN' (solstice: set "
            f"SOLSTICE_TOKEN): {_MAKE_ONE.format(needed)}",
            challenge=f"Bearer {REALM}",
        )
    if is_local:
        return Caller(name=LOCAL)
    return Denied(
        status=401,
        reason="no_tokens_yet",
        detail=f"there are no tokens here yet, so only this machine itself is answered: {_MAKE_ONE.format(needed)}",
        challenge=f"Bearer {REALM}",
    )


def _denied(reason: DeniedReason, detail: str) -> Denied:
    return Denied(
        status=401, reason=reason, detail=detail, challenge=f'Bearer {REALM}, error="invalid_token"'
    )


def _credentials(authorization: str | None) -> tuple[str, str | None]:
    """Return the scheme in lower case, and the token that was sent.

    A token comes as a bearer token (RFC 6750), or as the password of a login (RFC 7617), since a browser can
    ask for a login but not for a bearer token. The user name of the login is ignored.
    """
    scheme, _, rest = (authorization or "").strip().partition(" ")
    scheme, rest = scheme.lower(), rest.strip()
    match scheme:
        case "bearer":
            return scheme, rest
        case "basic":
            try:
                login = base64.b64decode(rest, validate=True).decode("utf-8", "surrogateescape")
            except (binascii.Error, ValueError):
                return scheme, ""
            return scheme, login.partition(":")[2]
    return scheme, None
