"""Gets tokens of GitHub Apps: each reads one repository, until it is about to expire."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import httpx2
import orjson

from solstice_common.addresses.http_client import http_client
from solstice_common.signing.github_app import (
    CLOCK_SECONDS,
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
TOKEN_SECONDS: Final = 3600.0
"""How long a token lives. One that would live longer by our clock was given by a clock ahead of ours."""
LIMIT_SECONDS: Final = 60.0
"""The length of a rate limit that names none."""
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_LIMIT_STATUSES: Final = frozenset({403, _TOO_MANY})

_Key = tuple[int, str, str]
"""The App, its API and the repository."""


class NoToken(Exception):
    """GitHub gave no token; the message says why."""


class NoTokenForNow(NoToken):
    """GitHub gave no answer, or failed itself.

    Neither the repository nor the App is the cause.
    """


class RateLimitReached(NoTokenForNow):
    """GitHub gives the App no tokens for a while."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(f"the rate limit of {url} for the GitHub App is reached, for {seconds:.0f} s more")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationTokens:
    """The tokens of all Apps of one orchestrator."""

    now: Callable[[], float] = time.time
    _tokens: dict[_Key, AppToken] = field(default_factory=dict)
    _issuing: WeakValueDictionary[_Key, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _limited_until: dict[tuple[int, str], float] = field(default_factory=dict)

    async def token(self, app_id: int, private_key: str, api_url: str, repo_url: str) -> str:
        """Return a token that reads this repository; raises NoToken.

        `api_url` is empty for the API of the repository's own host. ConfigurationError for an unusable key. Many callers
        at once share one token, and during a rate limit nothing is requested.
        """
        url, repository = api_url.rstrip("/") or api_of(repo_url), full_name_of(repo_url) or ""
        key = (app_id, url, repository)
        async with self._issuing.setdefault(key, asyncio.Lock()):
            now = self.now()
            known = self._tokens.get(key)
            if known is not None and known.expires_at - SPARE_SECONDS > now:
                return known.token
            limited_until = self._limited_until.get((app_id, url), now)
            if limited_until > now:
                raise RateLimitReached(url, limited_until - now)
            try:
                token = await _issued(url, repository, jwt(app_id, signing_key(private_key), now), now)
            except RateLimitReached as limited:
                self._limited_until[app_id, url] = now + limited.seconds
                raise
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
    host = urlsplit(repo_url).netloc.rpartition("@")[2]
    return "https://api.github.com" if host == "github.com" else f"https://{host}/api/v3"


async def _issued(url: str, repository: str, bearer: str, now: float) -> AppToken:
    async with http_client(url, timeout=httpx2.Timeout(CALL_SECONDS)) as client:
        call = _Call(client=client, url=url, bearer=bearer, now=now)
        found = await call.send("GET", f"/repos/{quote(repository, safe='/')}/installation")
        issued = await call.send(
            "POST",
            f"/app/installations/{_installation(found)}/access_tokens",
            token_request(repository, PERMISSIONS),
        )
    try:
        token, is_wider = read_token(issued), _is_wider(issued, repository)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NoToken(f"{url} gave no token") from None
    if is_wider:
        raise NoToken(f"{url} gave a token that may do more than read this repository, which is not used")
    return AppToken(token=token.token, expires_at=min(token.expires_at, now + TOKEN_SECONDS))


def _is_wider(issued: Any, repository: str) -> bool:
    """Return whether a token may write, or read other repositories."""
    rights, repositories = issued.get("permissions") or {}, issued.get("repositories") or ()
    name = repository.rpartition("/")[2].lower()
    return (
        any(right != "read" for right in rights.values())
        or any(each["name"].lower() != name for each in repositories)
        or issued.get("repository_selection") == "all"
    )


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
    now: float

    async def send(self, method: str, path: str, body: object = None) -> Any:
        """Return the document that answers; raises NoToken. Redirects are not followed."""
        headers = {"Authorization": f"Bearer {self.bearer}", "Accept": "application/vnd.github+json"}
        content = None if body is None else orjson.dumps(body)
        answer = bytearray()
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                self.client.stream(method, f"{self.url}{path}", headers=headers, content=content) as response,
            ):
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > ANSWER_BYTES:
                        raise NoToken(f"{self.url} gave an endless answer")
        except (httpx2.HTTPError, TimeoutError) as error:
            raise NoTokenForNow(f"{self.url} cannot be asked for a token ({type(error).__name__})") from None
        self._check(response.status_code, response.headers)
        try:
            return orjson.loads(answer)
        except ValueError:
            raise NoToken(f"{self.url} gave an answer that is no JSON") from None

    def _check(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise NoToken for an answer without success."""
        limit_seconds = _limit_seconds(status, headers, self.now)
        if limit_seconds is not None:
            raise RateLimitReached(self.url, limit_seconds)
        if status == _NOT_FOUND:
            raise NoToken("the GitHub App is not installed on the repository")
        if status == _UNAUTHORIZED:
            raise NoToken(
                f"{self.url} refused the GitHub App (401): compare its id and its private key"
                f"{_skew(headers.get('date', ''), self.now)}"
            )
        if status >= _SERVER_ERROR:
            raise NoTokenForNow(f"{self.url} failed itself when asked for a token ({status})")
        if not 200 <= status < 300:  # noqa: PLR2004  RFC 9110, section 15
            raise NoToken(f"{self.url} refused a token for the GitHub App ({status})")


def _limit_seconds(status: int, headers: Mapping[str, str], now: float) -> float | None:
    """Return how long a rate limit lasts; None for another answer.

    Source: docs.github.com, "Rate limits for the REST API", "Exceeding the rate limit".
    """
    if status not in _LIMIT_STATUSES:
        return None
    after, reset = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if after.isdecimal():
        seconds = float(after)
    elif headers.get("x-ratelimit-remaining") == "0":
        seconds = float(reset) - now if reset.isdecimal() else LIMIT_SECONDS
    elif status == _TOO_MANY:
        seconds = LIMIT_SECONDS
    else:
        return None
    return min(max(seconds, 1.0), TOKEN_SECONDS)


def _skew(date: str, now: float) -> str:
    """Return words about a clock of ours that is wrong; empty when it is right."""
    try:
        ahead = now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return ""
    if abs(ahead) <= CLOCK_SECONDS:
        return ""
    return f"; the clock of this machine is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
