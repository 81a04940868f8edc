"""Gets tokens of GitHub Apps: each reads one repository, until it is about to expire."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from solstice_common.addresses.http_client import http_client
from solstice_common.signing.github_app import (
    SPARE_SECONDS,
    AppToken,
    jwt,
    read_token,
    signing_key,
    token_request,
)
from solstice_common.values.repo_urls import full_name_of

PERMISSIONS: Final = {"contents": "read"}
CALL_SECONDS: Final = 15.0
ANSWER_BYTES: Final = 256 * 1024
REMEMBERED: Final = 1000
"""How many tokens are cached, far more than the repositories of one App in an hour."""
_NOT_FOUND: Final = 404


class NoToken(Exception):
    """GitHub gave no token; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationTokens:
    """The tokens of all Apps of one orchestrator."""

    now: Callable[[], float] = time.time
    _tokens: dict[tuple[int, str, str], AppToken] = field(default_factory=dict)

    async def token(self, app_id: int, private_key: str, api_url: str, repo_url: str) -> str:
        """Return a token that reads this repository; raises NoToken.

        `api_url` is empty for the API of the repository's own host. ConfigurationError for an unusable key.
        """
        url, repository = api_url.rstrip("/") or api_of(repo_url), full_name_of(repo_url) or ""
        key, now = (app_id, url, repository), self.now()
        known = self._tokens.get(key)
        if known is not None and known.expires_at - SPARE_SECONDS > now:
            return known.token
        bearer = jwt(app_id, signing_key(private_key), now)
        async with http_client(url, timeout=httpx2.Timeout(CALL_SECONDS)) as client:
            call = _Call(client=client, url=url, bearer=bearer)
            found = await call.send("GET", f"/repos/{quote(repository, safe='/')}/installation")
            issued = await call.send(
                "POST",
                f"/app/installations/{_installation(found)}/access_tokens",
                token_request(repository, PERMISSIONS),
            )
        try:
            token = read_token(issued)
        except (KeyError, TypeError, ValueError):
            raise NoToken(f"{url} gave no token") from None
        if len(self._tokens) >= REMEMBERED:
            self._tokens.pop(next(iter(self._tokens)))
        self._tokens[key] = token
        return token.token

    def forget(self, token: str) -> None:
        """Drop a token that was refused."""
        for key, known in list(self._tokens.items()):
            if known.token == token:
                del self._tokens[key]


def api_of(repo_url: str) -> str:
    """Return the URL of the API at a repository's host."""
    place = urlsplit(repo_url).netloc.rpartition("@")[2]
    return "https://api.github.com" if place == "github.com" else f"https://{place}/api/v3"


def _installation(found: Any) -> int:
    try:
        return int(found["id"])
    except (KeyError, TypeError, ValueError):
        raise NoToken("GitHub named no installation of the App") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    client: httpx2.AsyncClient
    url: str
    bearer: str = field(repr=False)

    async def send(self, method: str, path: str, body: object = None) -> Any:
        """Return the document that answers; raises NoToken. Redirects are not followed."""
        headers = {"Authorization": f"Bearer {self.bearer}", "Accept": "application/vnd.github+json"}
        content = None if body is None else orjson.dumps(body)
        answer = bytearray()
        try:
            async with self.client.stream(
                method, f"{self.url}{path}", headers=headers, content=content
            ) as response:
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > ANSWER_BYTES:
                        raise NoToken(f"{self.url} gave an endless answer")
        except httpx2.HTTPError as error:
            raise NoToken(f"{self.url} cannot be asked for a token ({type(error).__name__})") from None
        if response.status_code == _NOT_FOUND:
            raise NoToken("the GitHub App is not installed on the repository")
        if not response.is_success:
            raise NoToken(f"{self.url} refused a token for the GitHub App ({response.status_code})")
        try:
            return orjson.loads(answer)
        except ValueError:
            raise NoToken(f"{self.url} gave an answer that is no JSON") from None
