"""Calls one forge within its limits, bounded in time and bytes.

Credentials go to no other host.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

import httpx2
import orjson

from solstice_common.addresses.http_client import http_client
from solstice_common.messages import Source
from solstice_common.runtime.pausing import Timer
from solstice_forge.remote import gitea_family_calls, github_calls, gitlab_calls
from solstice_forge.remote.call_pacing import CallLimits, ForgeAnswer, answered, called, next_call_at
from solstice_forge.remote.github_app import AppTokens
from solstice_forge.remote.protocol import (
    CallDone,
    CallPostponed,
    CallRefused,
    ForgeAccess,
    ForgeCall,
    ForgeDialect,
    LinkedPage,
    Result,
)
from solstice_forge.remote.responses import next_query, result_of, words_of

T = TypeVar("T")

DIALECTS: Final[Mapping[Source, ForgeDialect]] = MappingProxyType(
    {
        Source.GITHUB: github_calls,
        Source.FORGEJO: gitea_family_calls,
        Source.GITEA: gitea_family_calls,
        Source.GITLAB: gitlab_calls,
    }
)

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""The largest answer: a page of a hundred deliveries with their bodies has a few megabytes."""
RESERVES: Final = 2
"""How many times the calls under way stay unused of a limit.

Another process may continue for one that dies.
"""
REDIRECTS: Final = 2
"""A renamed repository answers with one, to the same host."""
USER_AGENT: Final = "solstice-ci"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimeouts:
    """How long a call may take, in seconds."""

    connect: float = 5.0
    read: float = 10.0
    """The time until the forge's next byte."""
    total: float = 15.0


DEFAULT_TIMEOUTS: Final = CallTimeouts()


class Remote:
    """One forge, called with one set of credentials.

    Open with `Remote.open`; any number of tasks may ask at once.
    """

    def __init__(
        self,
        access: ForgeAccess,
        http: httpx2.AsyncClient,
        timeouts: CallTimeouts,
        clock: Callable[[], float],
        timer: Timer,
    ) -> None:
        self.access = access
        self.dialect = DIALECTS[access.origin]
        self._api = self.dialect.api_url(access.url)
        self._http = http
        self._timeouts = timeouts
        self._clock = clock
        self._timer = timer
        self._slots = asyncio.Semaphore(self.dialect.PACE.at_once)
        self._app = None if access.app is None else AppTokens(access.app, self._send)
        self.limits = CallLimits()
        """The known limits of the forge and our pace; may be set to those that another process stored."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        access: ForgeAccess,
        *,
        timeouts: CallTimeouts = DEFAULT_TIMEOUTS,
        clock: Callable[[], float] = time.time,
        timer: Timer = asyncio.timeout,
    ) -> AsyncIterator["Remote"]:
        """Open the forge of `access`.

        `clock` returns seconds since the epoch; `timer` ends calls that take too long.
        """
        async with http_client(
            access.url,
            timeout=httpx2.Timeout(timeouts.read, connect=timeouts.connect),
            follow_redirects=False,
            headers={"user-agent": USER_AGENT},
        ) as http:
            yield cls(access, http, timeouts, clock, timer)

    def next_call_at(self, *, writes: bool = True) -> float:
        """Return when the next call makes sense, in seconds since the epoch."""
        return (
            next_call_at(self.limits, self.dialect.PACE, self._clock()) if writes else self.limits.not_before
        )

    def count(self) -> None:
        """Count a writing call that will be made with `counted`, for callers that begin several."""
        self.limits = called(self.limits, self.dialect.PACE, self._clock())

    async def ask(self, call: ForgeCall[T], *, counted: bool = False) -> Result[T]:
        """Make the call, or return `CallPostponed` at once if a limit forbids it.

        It never raises for an error of the forge.
        """
        async with self._slots:
            now = self._clock()
            paced = call.writes and not counted
            at = self.next_call_at(writes=paced)
            if at > now:
                return CallPostponed(at=at, why="the forge's rate limit, or our pace below it", limited=True)
            if paced:
                self.count()
            token = await self._token(call)
            if not isinstance(token, CallDone):
                return token
            result = await self._send(call, token.value)
            if isinstance(result, CallPostponed) and result.why.startswith("401") and self._app is not None:
                # The token was revoked before it expired: the next call gets a new one.
                self._app.forget()
            return result

    async def _token(self, call: ForgeCall[T]) -> Result[str]:
        if self._app is not None:
            return await self._app.token_for(call, self._clock())
        if self.access.token:
            return CallDone(self.access.token)
        return CallRefused(status=0, detail=f"the source {self.access.name} has no token; give it one")

    async def _send(self, call: ForgeCall[T], token: str) -> Result[T]:
        try:
            async with self._timer(self._timeouts.total):
                answer, body = await self._exchange(call, token)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return self._later(error, perhaps_done=False)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, _TooLong) as error:
            return self._later(error, perhaps_done=call.writes)
        now = self._clock()
        self.limits = answered(self.limits, answer, reserve=RESERVES * self.dialect.PACE.at_once, now=now)
        if call.already(answer.status, answer.detail):
            return _read(call, b"", answer, now)
        ended = result_of(answer, now)
        if isinstance(ended, CallPostponed):
            return CallPostponed(
                at=max(now, self.limits.not_before),
                why=ended.why,
                limited=ended.limited,
                perhaps_done=ended.perhaps_done and call.writes,
            )
        return ended or _read(call, body, answer, now)

    def _later(self, error: Exception, *, perhaps_done: bool) -> CallPostponed:
        # The library's message may hold a URL, never a header.
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return CallPostponed(at=self._clock(), why=why, perhaps_done=perhaps_done)

    async def _exchange(self, call: ForgeCall[T], token: str) -> tuple[ForgeAnswer, bytes]:
        url = httpx2.URL(self._api + call.path)
        if call.query:
            url = url.copy_merge_params(dict(call.query))
        headers = dict(self.dialect.headers(token))
        content = None
        if call.body is not None:
            content = orjson.dumps(dict(call.body))
            headers["content-type"] = "application/json"
        for _ in range(REDIRECTS + 1):
            async with self._http.stream(call.method, url, headers=headers, content=content) as response:
                target = _safe_redirect(url, response, call)
                if target is not None:
                    url = target
                    continue
                return await self._answer(call, response, token)
        return ForgeAnswer(status=310, headers={}, detail="it redirects in a circle"), b""

    async def _answer(
        self, call: ForgeCall[T], response: httpx2.Response, token: str
    ) -> tuple[ForgeAnswer, bytes]:
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.is_success:
            body = b""
            if not call.unread:
                body = await _bounded(response)
            return ForgeAnswer(status=response.status_code, headers=headers), body
        # A truncated refusal does not count as one: its meaning may be in the rest.
        body = await _bounded(response)
        detail = words_of(body, (token,))
        if response.is_redirect:
            detail = "it redirects elsewhere; credentials do not go along: fix the source's url"
        return ForgeAnswer(status=response.status_code, headers=headers, detail=detail), body


@asynccontextmanager
async def open_remotes(
    accesses: Iterable[ForgeAccess], *, timeouts: CallTimeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[Mapping[str, Remote]]:
    """Open all forges that can be called, by the names of their sources.

    Raises ConfigurationError for an App without a key.
    """
    async with AsyncExitStack() as opened:
        yield {
            access.name: await opened.enter_async_context(Remote.open(access, timeouts=timeouts))
            for access in accesses
        }


class _TooLong(Exception):
    """The answer is too long."""

    def __str__(self) -> str:
        return f"the answer is longer than {ANSWER_BYTES} bytes"


async def _bounded(response: httpx2.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > ANSWER_BYTES:
            raise _TooLong
        parts.append(part)
    return b"".join(parts)


def _safe_redirect(url: httpx2.URL, response: httpx2.Response, call: ForgeCall[T]) -> httpx2.URL | None:
    """Return where a redirect leads if credentials may follow it.

    It must lead to the same scheme, host and port, and ask the same question.
    """
    if not response.is_redirect:
        return None
    if call.writes and response.status_code not in {307, 308}:
        return None
    try:
        target = url.join(response.headers.get("location", ""))
    except httpx2.InvalidURL:
        return None
    same = (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)
    return target if same else None


def _read(call: ForgeCall[T], body: bytes, answer: ForgeAnswer, now: float) -> Result[T]:
    try:
        document = orjson.loads(body) if body and not call.unread else None
        if call.linked:
            document = LinkedPage(document=document, next=next_query(answer.headers.get("link", "")))
        return CallDone(call.read(document))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return CallPostponed(
            at=now, why=f"an answer that cannot be read: {type(error).__name__}", perhaps_done=call.writes
        )
