"""Fetch files of commits in groups, so that many pushes share one connection.

Requests for a repository from which a fetch is under way wait for the next fetch. A repository that lets git wait must
not stop others: its fetch soon gives its permit back, and repositories that have not answered yet have few permits.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_group import (
    Files,
    FilesOrFailure,
    FilesRequest,
    RepositorySizes,
    SingleFetch,
    fetch_group,
    fetch_single,
)
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS, CredentialChoice
from solstice_orchestrator.git.failures import is_machine
from solstice_orchestrator.git.hosts import host_of
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.repository import object_format
from solstice_orchestrator.log_events import LogEvent

LOG = structlog.get_logger(__name__)

MAX_GROUP: Final = 32
"""Commits in one fetch."""
MAX_GROUPS: Final = 8
"""Repositories that are fetched from at once."""
MAX_GROUPS_OF_HOST: Final = 5
"""Of these on one host. So a host that does not answer leaves permits to others."""
MAX_SINGLE_FETCHES: Final = 4
"""Commits that are fetched singly at once, after their groups had no answer for them."""
MAX_SLOW_FETCHES: Final = 8
"""Fetches beyond all of these that have taken SLOW_SECONDS, of proven repositories; as many of the others."""
SLOW_SECONDS: Final = 5.0
MAX_COMMITS: Final = 128
MAX_BYTES: Final = 64 * 1024
"""The most bytes of one commit's files that are cached."""

T = TypeVar("T")
_Repository = tuple[str, str, CredentialChoice]
"""The URL of a repository, the format of its object ids, and the credential that fetches from it.

A run that gets no credential must not get what another one fetched with it.
"""
_Key = tuple[str, str, tuple[str, ...], CredentialChoice]


class _FetchPermits:
    """Permits of fetches; repositories that are not proven may hold half, rounded up."""

    def __init__(self, permits: int) -> None:
        self._all, self._unproven = asyncio.Semaphore(permits), asyncio.Semaphore((permits + 1) // 2)

    @asynccontextmanager
    async def permit(self, *, is_proven: bool) -> AsyncIterator[None]:
        """Wait for a permit, and hold it."""
        async with nullcontext() if is_proven else self._unproven, self._all:
            yield


class CommitFiles:
    """Fetches and caches files of commits, in tasks of the group `tasks`.

    Callers that ask for the same files at once share the answer, also a failure. `is_proven` tells of a repository's
    URL whether it has answered before, and has not failed lately. After PROVEN_SECONDS files are fetched again.
    `planned` gets the small commits that were fetched.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        policy: GitPolicy,
        scratch: Path,
        is_proven: Callable[[str], bool] = lambda _: True,
        *,
        clock: Callable[[], float] = time.monotonic,
        planned: PlannedCommits | None = None,
    ) -> None:
        self._planned = planned
        self._tasks, self._policy, self._scratch = tasks, policy, scratch
        self._is_proven, self._clock = is_proven, clock
        self._sizes = RepositorySizes()
        self._cache: OrderedDict[_Key, tuple[Files, float]] = OrderedDict()
        """The files of each commit, and when they came."""
        self._coming: dict[_Key, asyncio.Future[FilesOrFailure]] = {}
        self._waiting: defaultdict[_Repository, list[FilesRequest]] = defaultdict(list)
        """Waiting requests of each repository that has a task."""
        self._of_host: defaultdict[str, _FetchPermits] = defaultdict(
            lambda: _FetchPermits(MAX_GROUPS_OF_HOST)
        )
        self._groups, self._single_fetches = _FetchPermits(MAX_GROUPS), _FetchPermits(MAX_SINGLE_FETCHES)
        self._slow = {is_proven: asyncio.Semaphore(MAX_SLOW_FETCHES) for is_proven in (True, False)}

    async def of(self, request: JobRequestV1, paths: Sequence[str]) -> Files:
        """Return the first of the paths in the commit, with its content; raises CheckoutFailed."""
        choice = self._policy.credentials.choice(request)
        lookup = FilesRequest(request=request, paths=tuple(paths), credential=choice)
        key = _key(lookup)
        cached, came_at = self._cache.pop(key, (None, 0.0))
        if cached is not None and self._clock() - came_at < PROVEN_SECONDS:
            self._cache[key] = cached, came_at
            return cached
        if key not in self._coming:
            self._coming[key] = asyncio.get_running_loop().create_future()
            self._fetch(lookup)
        # Shielded: a caller that is cancelled must not cancel the answer for the others.
        answer = await asyncio.shield(self._coming[key])
        if isinstance(answer, CheckoutFailed):
            raise CheckoutFailed(
                answer.reason, answer.detail, may_appear=answer.may_appear, host_away=answer.host_away
            )
        return answer

    def _fetch(self, lookup: FilesRequest) -> None:
        request = lookup.request
        repository = (request.repo_url, object_format(request.commit_sha), lookup.credential)
        is_served = repository in self._waiting
        self._waiting[repository].append(lookup)
        if not is_served:
            self._tasks.create_task(self._serve(repository), name=f"fetch from {repository[0]}")

    async def _serve(self, repository: _Repository) -> None:
        """Fetch group after group until no request of the repository waits."""
        url, lookups = repository[0], list[FilesRequest]()

        async def fetch_next() -> Sequence[FilesOrFailure | SingleFetch]:
            nonlocal lookups
            waiting = self._waiting[repository]
            lookups, self._waiting[repository] = waiting[:MAX_GROUP], waiting[MAX_GROUP:]
            return await self._fetch_group(lookups)

        try:
            while self._waiting[repository]:
                fetched = await self._permitted(url, fetch_next, self._of_host[host_of(url)], self._groups)
                answers = [_too_slow(url)] * len(lookups) if fetched is None else fetched
                for lookup, answer in zip(lookups, answers, strict=True):
                    if isinstance(answer, SingleFetch):
                        self._tasks.create_task(
                            self._serve_single(lookup, answer), name=f"fetch {lookup.request.commit_sha[:10]}"
                        )
                    else:
                        self._resolve(lookup, answer)
                lookups = []
        finally:
            for lookup in (*lookups, *self._waiting.pop(repository)):
                self._give_up(lookup)

    async def _serve_single(self, lookup: FilesRequest, how: SingleFetch) -> None:
        try:
            url = lookup.request.repo_url
            fetched = await self._permitted(
                url, lambda: self._fetch_single(lookup, how), self._single_fetches
            )
            self._resolve(lookup, _too_slow(url) if fetched is None else fetched)
        finally:
            self._give_up(lookup)

    async def _permitted(
        self, url: str, fetch: Callable[[], Coroutine[Any, Any, T]], *permits: _FetchPermits
    ) -> T | None:
        """Run a fetch with one permit of each kind, given back when it is slow.

        Return None when too many others are slow already.
        """
        is_proven = self._is_proven(url)
        async with asyncio.TaskGroup() as tasks:
            async with AsyncExitStack() as acquired:
                for each in permits:
                    await acquired.enter_async_context(each.permit(is_proven=is_proven))
                fetching = tasks.create_task(fetch(), name=f"fetch from {url}")
                await asyncio.wait([fetching], timeout=SLOW_SECONDS)
            if not fetching.done() and self._slow[is_proven].locked():
                fetching.cancel()
            elif not fetching.done():
                async with self._slow[is_proven]:
                    await asyncio.wait([fetching])
        return None if fetching.cancelled() else fetching.result()

    async def _fetch_group(self, lookups: Sequence[FilesRequest]) -> Sequence[FilesOrFailure | SingleFetch]:
        try:
            return await fetch_group(
                lookups,
                policy=self._policy,
                scratch=self._scratch,
                sizes=self._sizes,
                planned=self._planned,
            )
        except Exception as error:
            # A bug that one commit triggers must stop neither the other commits nor the loop.
            if is_machine(error):
                return [_failure_of(error)] * len(lookups)
            LOG.exception(LogEvent.PLANNING_CRASHED, request_id=lookups[0].request.request_id)
            return [SingleFetch.AGAIN if len(lookups) > 1 else _failure_of(error) for _ in lookups]

    async def _fetch_single(self, lookup: FilesRequest, how: SingleFetch) -> FilesOrFailure:
        try:
            return await fetch_single(lookup, how, policy=self._policy, scratch=self._scratch)
        except Exception as error:
            if not is_machine(error):
                LOG.exception(LogEvent.PLANNING_CRASHED, request_id=lookup.request.request_id)
            return _failure_of(error)

    def _resolve(self, lookup: FilesRequest, answer: FilesOrFailure) -> None:
        key = _key(lookup)
        self._coming.pop(key).set_result(answer)
        if not isinstance(answer, CheckoutFailed) and sum(map(len, answer.values())) <= MAX_BYTES:
            self._cache[key] = answer, self._clock()
            if len(self._cache) > MAX_COMMITS:
                self._cache.popitem(last=False)

    def _give_up(self, lookup: FilesRequest) -> None:
        """Cancel the callers that still wait for this request."""
        if future := self._coming.pop(_key(lookup), None):
            future.cancel()


def _key(lookup: FilesRequest) -> _Key:
    return (lookup.request.repo_url, lookup.request.commit_sha, lookup.paths, lookup.credential)


def _failure_of(error: Exception) -> CheckoutFailed:
    reason = Reason.MACHINE_FAILED if is_machine(error) else Reason.CHECKOUT_FAILED
    return CheckoutFailed(reason, f"{type(error).__name__}: {error}")


def _too_slow(url: str) -> CheckoutFailed:
    return CheckoutFailed(
        Reason.HOST_AWAY,
        f"{url} is slow to answer, and {MAX_SLOW_FETCHES} others are waited for already",
        host_away=True,
    )
