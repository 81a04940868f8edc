"""API v1 of schedules and their ticks."""

import asyncio
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.http.access import LOCAL
from solstice_common.http.openapi import JSON
from solstice_common.values.validation import in_words
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
from solstice_orchestrator.web.api.schedule_requests import ScheduleEdit, ScheduleInput
from solstice_orchestrator.web.formats.api_json import rfc3339, schedule_document, tick_document
from solstice_orchestrator.web.formats.cursors import cursor_of, position_of
from solstice_orchestrator.web.formats.query_parameters import (
    NextQuery,
    NoParameters,
    SchedulesQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import HttpRefusal, invalid_cursor, not_found
from solstice_orchestrator.web.formats.sse import OpenStreams

SCHEDULES: Final = "schedules"
SHOWN_TICKS: Final = 20
MAX_BYTES: Final = 64 * 1024
BODY_SECONDS: Final = 10.0

ModelT = TypeVar("ModelT", bound=BaseModel)


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
        filters = ScheduleFilters(repository=query.repository, ref=query.ref)
        after = None if query.after is None else position_of(query.after, SCHEDULES, filters)
        if query.after is not None and after is None:
            raise invalid_cursor()
        page = await self._schedule_store.schedules(limit=query.limit + 1, after=after, filters=filters)
        shown = page[: query.limit]
        following = cursor_of(shown[-1].schedule_id, SCHEDULES, filters) if len(page) > len(shown) else None
        return answer({"schedules": [schedule_document(each) for each in shown], "next": following})

    async def add(self, request: Request) -> Response:
        """Build a branch regularly. The first tick is the next one after now."""
        parse_query(request, NoParameters)
        requested = await parse_body(request, ScheduleInput)
        added = await self._schedule_store.add(requested.spec(), caller_of(request))
        return answer(schedule_document(_named(added, requested.name)), status=201)

    async def schedule(self, request: Request) -> Response:
        """One schedule with its newest ticks."""
        parse_query(request, NoParameters)
        schedule = await self._known(request)
        ticks = await self._schedule_store.ticks(schedule.schedule_id, SHOWN_TICKS)
        return answer(schedule_document(schedule) | {"ticks": [tick_document(tick) for tick in ticks]})

    async def edit(self, request: Request) -> Response:
        """Change a schedule.

        With another time or zone its next tick is the first after this moment.
        """
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
        # In a thread: the search for some expressions goes through centuries.
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
        """An event at each change of the schedules."""
        parse_query(request, NoParameters)
        return stream(request, follow_schedules(self._schedule_store, self._streams))

    async def steer(self, request: Request) -> Response:
        """Pause, resume, fire or remove a schedule; a removed one in its last state."""
        parse_query(request, NoParameters)
        return answer(schedule_document(await steered(self._schedule_store, request)), status=202)

    async def _known(self, request: Request) -> ScheduleView:
        which = request.path_params["schedule"]
        schedule = await self._schedule_store.schedule(which)
        if schedule is None:
            raise not_found("schedule", which)
        return schedule


async def steered(schedule_store: ScheduleStore, request: Request) -> ScheduleView:
    """Carry out the action of the path on its schedule, and return the schedule.

    A removed one is returned in its last state.
    """
    which, action = request.path_params["schedule"], request.path_params["action"]
    match action:
        case "pause":
            view = await schedule_store.pause(which)
        case "resume":
            view = await schedule_store.resume(which)
        case "fire":
            view = await schedule_store.fire(which)
        case "remove":
            view = await schedule_store.schedule(which)
            if not await schedule_store.remove(which):
                view = None
        case unknown:
            raise not_found("action", unknown)
    if view is None:
        raise not_found("schedule", which)
    return view


def _named(result: ScheduleView | NotScheduled, name: str) -> ScheduleView:
    if isinstance(result, NotScheduled):
        raise HttpRefusal(409, result.value, f"There is a schedule {name!r} already: choose another name.")
    return result


def caller_of(request: Request) -> str | None:
    """The name of the request's token; None for a caller on this machine."""
    name: str = request.scope["caller"]
    return None if name == LOCAL else name


async def parse_body(request: Request, model: type[ModelT]) -> ModelT:
    """Parse a request's body; raises HttpRefusal when it is wrong.

    It may be no JSON, too large, too slow, or not fit the model.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpRefusal(
            415, "unsupported_content_type", f"Send it as {JSON}, not as {kind[:100] or 'nothing'}."
        )
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise HttpRefusal(413, "too_large", f"It has more than {MAX_BYTES} bytes.")
    except (TimeoutError, ClientDisconnect):
        raise HttpRefusal(
            408, "body_incomplete", f"The body was not here within {BODY_SECONDS:.0f} s: send it again."
        ) from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise HttpRefusal(400, "malformed", f"{_sentence(error)}.") from None


def _sentence(error: ValidationError) -> str:
    """Describe the errors in one line."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {in_words(problem)}"
        for problem in error.errors(include_url=False, include_input=False)[:10]
    )
