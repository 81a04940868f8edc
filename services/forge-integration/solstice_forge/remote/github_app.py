"""Gets and caches tokens of a GitHub App, each for one repository.

A token has only the permissions that a call needs, and is used until it expires.
Source: docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app (a JWT of at most ten minutes, its
clock a minute in the past; a token of an hour, narrowed by `repositories` and `permissions`).
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import orjson
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from solstice_common.errors import ConfigurationError
from solstice_forge.remote.protocol import AppCredentials, Done, ForgeCall, Result

JWT_SECONDS: Final = 540
CLOCK_SECONDS: Final = 60
"""How far GitHub's clock may be behind ours."""
SPARE_SECONDS: Final = 300.0
"""A token is not used in its last minutes, because a call may take a while."""
REMEMBERED: Final = 1000
"""How many tokens and installations are cached, far more than the repositories of one App in an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppToken:
    """A token of an installation, and when it expires."""

    token: str = field(repr=False)
    expires_at: float


_Key = tuple[str, tuple[tuple[str, str], ...]]


class AppTokens:
    """The tokens of one App. `send` makes a call with the given bearer token."""

    def __init__(
        self, app: AppCredentials, send: Callable[[ForgeCall[Any], str], Awaitable[Result[Any]]]
    ) -> None:
        self._app = app
        self._key = signing_key(app.private_key)
        self._send = send
        self._installations: dict[str, int] = {}
        self._tokens: dict[_Key, AppToken] = {}

    def forget(self) -> None:
        """Drop all tokens, because one was refused."""
        self._tokens.clear()

    async def token_for(self, call: ForgeCall[Any], now: float) -> Result[str]:
        """Return the token for the call."""
        if call.as_app:
            return Done(jwt(self._app.id, self._key, now))
        permissions = dict(call.permissions) or {"metadata": "read"}
        key = (call.repository, tuple(sorted(permissions.items())))
        known = self._tokens.get(key)
        if known is not None and known.expires_at - SPARE_SECONDS > now:
            return Done(known.token)
        installation = await self._installation(call.repository, now)
        if not isinstance(installation, Done):
            return installation
        token_call = access_token(installation.value, call.repository, permissions)
        issued: Result[AppToken] = await self._send(token_call, jwt(self._app.id, self._key, now))
        if not isinstance(issued, Done):
            # The App may have been installed again.
            self._installations.pop(call.repository, None)
            return issued
        _remember(self._tokens, key, issued.value)
        return Done(issued.value.token)

    async def _installation(self, repository: str, now: float) -> Result[int]:
        if repository in self._installations:
            return Done(self._installations[repository])
        result: Result[int] = await self._send(installation(repository), jwt(self._app.id, self._key, now))
        if isinstance(result, Done):
            _remember(self._installations, repository, result.value)
        return result


def _remember(cache: dict[Any, Any], key: object, value: object) -> None:
    if len(cache) >= REMEMBERED:
        cache.pop(next(iter(cache)))
    cache[key] = value


def installation(repository: str) -> ForgeCall[int]:
    """Ask which installation of the App may act on a repository."""
    return ForgeCall(
        method="GET",
        path=f"/repos/{quote(repository, safe='/')}/installation",
        read=lambda document: int(document["id"]),
        as_app=True,
    )


def access_token(
    installation_id: int, repository: str, permissions: Mapping[str, str]
) -> ForgeCall[AppToken]:
    """Ask for a token for this one repository with only these permissions."""
    return ForgeCall(
        method="POST",
        path=f"/app/installations/{installation_id}/access_tokens",
        body={"repositories": [repository.rpartition("/")[2]], "permissions": dict(permissions)},
        read=_token,
        as_app=True,
    )


def _token(document: Any) -> AppToken:
    return AppToken(
        token=str(document["token"]), expires_at=datetime.fromisoformat(document["expires_at"]).timestamp()
    )


def signing_key(pem: str) -> rsa.RSAPrivateKey:
    """Return the App's key; ConfigurationError, without any of the key, when it is invalid."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            "the private key of a GitHub App cannot be read: it must be the PEM file that GitHub gave, unencrypted"
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigurationError("the private key of a GitHub App must be an RSA key")
    return key


def jwt(app_id: int, key: rsa.RSAPrivateKey, now: float) -> str:
    """Return the token with which an App signs in (RFC 7519, RS256)."""
    claims = {"iat": int(now) - CLOCK_SECONDS, "exp": int(now) + JWT_SECONDS, "iss": str(app_id)}
    signed = f"{_segment({'alg': 'RS256', 'typ': 'JWT'})}.{_segment(claims)}"
    return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _segment(fields: Mapping[str, object]) -> str:
    return _base64(orjson.dumps(dict(fields)))


def _base64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()
