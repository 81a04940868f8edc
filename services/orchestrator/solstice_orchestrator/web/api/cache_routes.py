"""API v1 of caches: what jobs have saved for later ones."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.values.repo_urls import name_of
from solstice_orchestrator.web.api.runs import answer
from solstice_orchestrator.web.formats.api_json import document
from solstice_orchestrator.web.formats.query_parameters import CachesQuery, NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import HttpRefusal, not_found
from solstice_orchestrator.worker.caches.cache_entries import CacheView, UsedEntry
from solstice_orchestrator.worker.caches.cache_store import CacheStore


class CachesApi:
    """The routes of caches."""

    def __init__(self, caches: CacheStore | None) -> None:
        self._caches = caches

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/caches", self.caches),
            Route("/caches/{cache}", self.cache),
            Route("/caches/{cache}/drop", self.drop, methods=["POST"]),
        ]

    async def caches(self, request: Request) -> Response:
        """The caches of all jobs, the last used first.

        `count` and `bytes` are those of all that fit.
        """
        query = parse_query(request, CachesQuery)
        found = [used for used in await self._entries() if _fits(used, query)]
        shown = [document(CacheView.of(used)) for used in found[: query.limit]]
        return answer({"caches": shown, "count": len(found), "bytes": sum(used.entry.size for used in found)})

    async def cache(self, request: Request) -> Response:
        """One cache."""
        parse_query(request, NoParameters)
        return answer(document(CacheView.of(await self._named(request))))

    async def drop(self, request: Request) -> Response:
        """Remove a cache.

        The next job that looks for its key finds none, and saves it again.
        """
        parse_query(request, NoParameters)
        used = await self._named(request)
        try:
            await asyncio.to_thread(self._store().remove, [used.entry])
        except OSError as error:
            raise _unavailable(error) from None
        return answer(document(CacheView.of(used)))

    async def _named(self, request: Request) -> UsedEntry:
        which = request.path_params["cache"]
        for used in await self._entries():
            if used.entry.identifier == which:
                return used
        raise not_found("cache", which)

    async def _entries(self) -> Sequence[UsedEntry]:
        store = self._store()
        try:
            found = await asyncio.to_thread(store.entries)
        except OSError as error:
            raise _unavailable(error) from None
        return sorted(found, key=lambda used: (-used.used_at, used.entry.name))

    def _store(self) -> CacheStore:
        if self._caches is None:
            raise HttpRefusal(503, "unavailable", "No caches are set up here.")
        return self._caches


def _fits(used: UsedEntry, query: CachesQuery) -> bool:
    place = used.entry.place
    return (
        (query.repository is None or _is_named(place.repository, query.repository))
        and query.name in {None, place.cache}
        and query.scope in {None, place.scope.shown}
        and (query.trusted is None or place.scope.is_trusted == (query.trusted == "1"))
    )


def _is_named(repository: str, named: str) -> bool:
    """Return whether the repository has this URL, or this name at its host."""
    if "://" in named:
        try:
            return repository == name_of(named)
        except ValueError:
            return False
    return f"/{repository}".endswith(f"/{named}")


def _unavailable(error: OSError) -> HttpRefusal:
    return HttpRefusal(503, "unavailable", f"The caches cannot be reached: {error}")
