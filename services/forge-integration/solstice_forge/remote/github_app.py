"""Gets and caches tokens of a GitHub App, each for one repository.

A token has only the permissions that a call needs, and is used until it expires.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from solstice_common.signing.github_app import (
    SPARE_SECONDS,
    AppToken,
    jwt,
    read_token,
    signing_key,
    token_request,
)
from solstice_forge.remote.protocol import AppCredentials, CallDone, ForgeCall, Result

REMEMBERED: Final = 1000
"""How many tokens and installations are cached, far more than the repositories of one App in an hour."""


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
        """Return the token that the call needs, from the cache or a new one."""
        if call.as_app:
            return CallDone(jwt(self._app.id, self._key, now))
        permissions = dict(call.permissions) or {"metadata": "read"}
        key = (call.repository, tuple(sorted(permissions.items())))
        known = self._tokens.get(key)
        if known is not None and known.expires_at - SPARE_SECONDS > now:
            return CallDone(known.token)
        installation = await self._installation(call.repository, now)
        if not isinstance(installation, CallDone):
            return installation
        token_call = access_token(installation.value, call.repository, permissions)
        issued: Result[AppToken] = await self._send(token_call, jwt(self._app.id, self._key, now))
        if not isinstance(issued, CallDone):
            # The App may have been installed again.
            self._installations.pop(call.repository, None)
            return issued
        _remember(self._tokens, key, issued.value)
        return CallDone(issued.value.token)

    async def _installation(self, repository: str, now: float) -> Result[int]:
        if repository in self._installations:
            return CallDone(self._installations[repository])
        result: Result[int] = await self._send(installation(repository), jwt(self._app.id, self._key, now))
        if isinstance(result, CallDone):
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
        body=token_request(repository, permissions),
        read=read_token,
        as_app=True,
    )
