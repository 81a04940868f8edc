"""API v1 about schedules: what is built regularly, what became of its ticks, and what people want of it."""

import asyncio
from datetime import datetime
from itertools import islice
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.http.access import LOCAL
from solstice_orchestrator.schedules.cron import timing
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.schedule_store import (
    NotScheduled,
    ScheduleFilters,
    ScheduleStore,
    ScheduleView,
)
from solstice_orchestrator.web.api.following import follow_schedules
from solstice_orchestrator.web.api.runs import answer, stream
from solstice_orchestrator.web.api.schedule_requests import ScheduleEdit, ScheduleWish
from solstice_orchestrator.web.formats.api_json import rfc3339, schedule_document, tick_document
from solstice_orchestrator.web.formats.bodies import parse_body
from solstice_orchestrator.web.formats.cursors import cursor_of, place_of
from solstice_orchestrator.web.formats.query_parameters import (
    NextQuery,
    NoParameters,
    SchedulesQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import HttpRefusal, not_found
from solstice_orchestrator.web.formats.sse import OpenStreams

SCHEDULES: Final = "schedules"
SHOWN_TICKS: Final = 20


class SchedulesApi:
    """The routes below `/api/v1/schedules`; a schedule is named by its name or its id."""

    def __init__(self, store: JobStore, streams: OpenStreams) -> None:
        self._schedule_store = store.schedule_store
        self._streams = streams

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/schedules", self.schedules),
            Route("/schedules", self.add, methods=["POST"]),
            Route("/schedules/events", self.events),
            Route("/schedules/{schedule}", self.schedule),
            Route("/schedules/{schedule}", self.edit, methods=["POST"]),
            Route("/schedules/{schedule}/next", self.next),
            Route("/schedules/{schedule}/{action}", self.steer, methods=["POST"]),
        ]

    async def schedules(self, request: Request) -> Response:
        """One page of schedules, in the order in which they were added."""
        query = parse_query(request, SchedulesQuery)
        wanted = ScheduleFilters(repository=query.repository, ref=query.ref)
        after = None if query.after is None else place_of(query.after, SCHEDULES, wanted)
        if query.after is not None and after is None:
            raise HttpRefusal(
                400,
                "invalid_cursor",
                "after must be the next of a page of this list with the same filters: begin without it.",
            )
        found = await self._schedule_store.schedules(limit=query.limit + 1, after=after, wanted=wanted)
        shown = found[: query.limit]
        following = cursor_of(shown[-1].schedule_id, SCHEDULES, wanted) if len(found) > len(shown) else None
        return answer({"schedules": [schedule_document(each) for each in shown], "next": following})

    async def add(self, request: Request) -> Response:
        """Build a branch regularly, from the first tick after this moment on."""
        parse_query(request, NoParameters)
        requested = await parse_body(request, ScheduleWish)
        added = await self._schedule_store.add(requested.spec(), caller_of(request))
        return answer(schedule_document(_named(added, requested.name)), status=201)

    async def schedule(self, request: Request) -> Response:
        """One schedule with its newest ticks."""
        parse_query(request, NoParameters)
        schedule = await self._known(request)
        ticks = await self._schedule_store.ticks(schedule.schedule_id, SHOWN_TICKS)
        return answer(schedule_document(schedule) | {"ticks": [tick_document(tick) for tick in ticks]})

    async def edit(self, request: Request) -> Response:
        """Change a schedule; with another time or zone its next tick is the first after this moment."""
        parse_query(request, NoParameters)
        changes = (await parse_body(request, ScheduleEdit)).changes()
        which = request.path_params["schedule"]
        changed = await self._schedule_store.edit(which, changes)
        if changed is None:
            raise not_found("schedule", which)
        return answer(schedule_document(_named(changed, changes.get("name", which))))

    async def next(self, request: Request) -> Response:
        """When its next ticks are due, also while it is paused."""
        query = parse_query(request, NextQuery)
        schedule = await self._known(request)
        when = timing(schedule.cron, schedule.timezone, seconds=True)
        now = await self._schedule_store.now()
        # Some expressions are searched for through centuries.
        ticks = await asyncio.to_thread(lambda: [*islice(when.between(now, float("inf")), query.count)])
        return answer(
            {
                "schedule_id": schedule.schedule_id,
                "timezone": schedule.timezone,
                "ticks": [
                    {"at": rfc3339(at), "local": datetime.fromtimestamp(at, when.zone).isoformat()}
                    for at in ticks
                ],
            }
        )

    async def events(self, request: Request) -> Response:
        """That the schedules changed."""
        parse_query(request, NoParameters)
        return stream(request, follow_schedules(self._schedule_store, self._streams))

    async def steer(self, request: Request) -> Response:
        """Pause, resume, fire or remove a schedule; of one that was removed, how it was."""
        parse_query(request, NoParameters)
        return answer(schedule_document(await steered(self._schedule_store, request)), status=202)

    async def _known(self, request: Request) -> ScheduleView:
        which = request.path_params["schedule"]
        schedule = await self._schedule_store.schedule(which)
        if schedule is None:
            raise not_found("schedule", which)
        return schedule


async def steered(schedule_store: ScheduleStore, request: Request) -> ScheduleView:
    """The schedule that the path names, after the action that the path names; as it was when it is removed."""
    which, action = request.path_params["schedule"], request.path_params["action"]
    match action:
        case "pause":
            found = await schedule_store.pause(which)
        case "resume":
            found = await schedule_store.resume(which)
        case "fire":
            found = await schedule_store.fire(which)
        case "remove":
            found = await schedule_store.schedule(which)
            if not await schedule_store.remove(which):
                found = None
        case unknown:
            raise not_found("action", unknown)
    if found is None:
        raise not_found("schedule", which)
    return found


def _named(found: ScheduleView | NotScheduled, name: str) -> ScheduleView:
    if isinstance(found, NotScheduled):
        raise HttpRefusal(409, found.value, f"There is a schedule {name!r} already: choose another name.")
    return found


def caller_of(request: Request) -> str | None:
    """The name of the token by which it was asked; None for this machine itself."""
    name: str = request.scope["caller"]
    return None if name == LOCAL else name
