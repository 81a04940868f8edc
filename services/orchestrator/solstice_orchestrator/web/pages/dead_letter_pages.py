"""Pages of dead letters: overview, list, one message, replays and removals.

The last two ask first.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Send

from solstice_common.broker.dead_letters.counting import counts
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_queue import ID_DIGITS
from solstice_common.broker.dead_letters.reasons import advice
from solstice_common.broker.dead_letters.replay_message import reason_to_stay
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.messages import Priority
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.web.api.runs import stream
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess, DeadLetterWork
from solstice_orchestrator.web.formats.form_tokens import form_token, remember, submitted
from solstice_orchestrator.web.formats.masked_text import masked, shown_body, shown_header, visible
from solstice_orchestrator.web.formats.query_parameters import DeadLetterPageQuery, NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import HttpRefusal, not_found
from solstice_orchestrator.web.formats.sse import Event, Events, OpenStreams
from solstice_orchestrator.web.health import QueueDepths
from solstice_orchestrator.web.pages import dead_letter_wording as wording

log = structlog.get_logger(__name__)

PATH: Final = "/dead-letters"
HANDLINGS: Final = ("replay", "drop")
SHOWN: Final = 50
AT_ONCE: Final = 10_000
"""The most that one confirmation replays or drops."""
NAMED: Final = 20
"""How many of them the confirmation lists."""
WATCH_SECONDS: Final = 2.0
"""How long a replay waits for messages that are refused again."""
TELL_SECONDS: Final = 0.5
POLL_SECONDS: Final = 2.0
STAYS_HERE: Final = Markup("<!-- the work -->")
"""The text at which the page of the work is cut in two; escaped text cannot contain it."""


class PageText(Protocol):
    """Renders a template of the pages."""

    def __call__(self, template: str, **values: Any) -> str: ...


class DeadLetterPages:
    """The handlers below `/dead-letters`."""

    def __init__(
        self,
        access: DeadLetterAccess | None,
        streams: OpenStreams,
        queue_depths: QueueDepths,
        render: PageText,
    ) -> None:
        self._access = access
        self._streams = streams
        self._queue_depths = queue_depths
        self._render = render

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, self.overview),
            Route(f"{PATH}/list", self.listing),
            Route(f"{PATH}/events", self.events),
            *(Route(f"{PATH}/{each}", self.confirm) for each in HANDLINGS),
            *(Route(f"{PATH}/{each}", self.handle, methods=["POST"]) for each in HANDLINGS),
            Route(f"{PATH}/{{dead_letter}}", self.dead_letter),
        ]

    async def overview(self, request: Request) -> Response:
        """Every kind of dead letters with its queues and numbers."""
        parse_query(request, NoParameters)
        access = self._available()
        routes, now = access.routes(), datetime.now(UTC)
        found = await access.browse(routes, Selection())
        # Once for each queue: of tens of thousands it took seconds, in which nothing else was answered.
        kind_of = {each.dlq: each.kind for each in routes}
        kinds = [
            (
                kind,
                [each.dlq for each in routes if each.kind == kind and each.is_declared],
                counts([each for each in found if kind_of[each.dead_letter.queue] == kind], now),
            )
            for kind in wording.QUEUES
        ]
        return self._page("dead_letters.html", kinds=kinds, may_operate=_may_operate(request))

    async def listing(self, request: Request) -> Response:
        """Dead letters that match the filters, the oldest first."""
        query = parse_query(request, DeadLetterPageQuery)
        access = self._available()
        everything = await access.browse(access.routes(query.queues), Selection())
        selection = query.selection(datetime.now(UTC))
        found = sorted((each for each in everything if selection.fits(each)), key=wording.place)
        behind = [each for each in found if query.after is None or wording.place(each) > query.after]
        shown = behind[:SHOWN]
        return self._page(
            "dead_letter_list.html",
            found=shown,
            total=len(found),
            filters=query.filters(),
            queue_options=list(wording.QUEUES.items()),
            reason_options=[(each, wording.shortened(each)) for each in _reasons(everything, query.reason)],
            priority_options=[(each.value, each.value.capitalize()) for each in Priority],
            age_options=wording.AGES,
            more=shown[-1] if len(behind) > len(shown) else None,
            after=query.after,
            may_operate=_may_operate(request),
        )

    async def dead_letter(self, request: Request) -> Response:
        """One dead letter: its reason, history, headers and body."""
        access = self._available()
        query = parse_query(request, DeadLetterPageQuery, others=True)
        dead_letter_id = request.path_params["dead_letter"]
        one = await access.find(access.routes(query.queues), dead_letter_id)
        if one is None:
            raise not_found("dead letter", dead_letter_id)
        return self._page(
            "dead_letter.html",
            one=one,
            queue=access.kind(one),
            kept=reason_to_stay(one),
            headers=[
                (name, shown_header(name, value)) for name, value in sorted(one.dead_letter.headers.items())
            ],
            body=shown_body(one.dead_letter.body),
            may_operate=_may_operate(request),
        )

    async def confirm(self, request: Request) -> Response:
        """Ask whether to replay or drop what the filters select; changes nothing."""
        access = self._available()
        if not _may_operate(request):
            raise HttpRefusal(
                403, "missing_scope", "To replay or drop dead letters, use a token with the scope 'operate'."
            )
        query = parse_query(request, DeadLetterPageQuery, others=True)
        routes = access.routes(query.queues)
        found = await access.browse(routes, query.selection(datetime.now(UTC)))
        handling = _handling(request)
        why = {each.id: reason_to_stay(each) if handling == "replay" else "" for each in found}
        chosen = [each for each in found if not why[each.id]]
        token = form_token(request)
        answer = self._page(
            "dead_letter_handling.html",
            handling=handling,
            chosen=chosen[:AT_ONCE],
            beyond=max(0, len(chosen) - AT_ONCE),
            kept=[(each, why[each.id]) for each in found if why[each.id]],
            named=NAMED,
            filters=query.filters(),
            token=token,
        )
        remember(answer, token, path=PATH)
        return answer

    async def handle(self, request: Request) -> Response:
        """Replay or drop the dead letters of the form; the page grows meanwhile."""
        access = self._available()
        fields = await submitted(request)
        ids = fields.get("ids", "").split()
        if not ids or len(ids) > AT_ONCE or any(len(each) != ID_DIGITS for each in ids):
            raise HttpRefusal(400, "invalid_parameter", f"ids: 1 to {AT_ONCE} whole ids of dead letters.")
        queue, handling = fields.get("queue", ""), _handling(request)
        work = DeadLetterWork(
            access=access,
            routes=access.routes([queue] if queue else []),
            ids=list(dict.fromkeys(ids)),
            by=f"the page, asked by {request.scope['caller']}",
        )
        before, _, after = self._text(
            "dead_letter_work.html", handling=handling, total=len(work.ids), queue=queue, work_here=STAYS_HERE
        ).partition(STAYS_HERE)
        return _GrowingPage(self._work(work, handling, before, after))

    async def events(self, request: Request) -> Response:
        """`changed` whenever a dead-letter queue has grown or shrunk."""
        access = self._available()
        names = [each.dlq for each in access.routes()]
        return stream(request, _changes(self._streams, self._queue_depths, names))

    async def _work(
        self, work: DeadLetterWork, handling: str, before: str, after: str
    ) -> AsyncGenerator[str, None]:
        replays = handling == "replay"
        yield before
        task = asyncio.create_task(
            work.replay(watch_seconds=WATCH_SECONDS) if replays else work.drop(),
            name=f"dead letters: {handling}",
        )
        try:
            while not task.done() and not self._streams.closed:
                yield self._text("dead_letter_progress.html", handling=handling, work=work)
                await asyncio.wait([task], timeout=TELL_SECONDS)
        finally:
            # Also stop when the reader has left, or lost the right: nothing is lost.
            task.cancel()
            await asyncio.wait([task])
        yield self._text("dead_letter_result.html", handling=handling, work=work, stopped=_why_stopped(task))
        yield after

    def _available(self) -> DeadLetterAccess:
        if self._access is None:
            raise HttpRefusal(503, "unavailable", "This server has no broker.")
        return self._access

    def _page(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._text(template, **values), headers={"Cache-Control": "no-store"})

    def _text(self, template: str, **values: Any) -> str:
        """The template's text, with hidden characters made visible."""
        return visible(self._render(template, dead_words=wording, advice=advice, masked=masked, **values))


class _GrowingPage(StreamingResponse):
    """A page that is sent piece by piece.

    Its pieces end in the task that serves the request.
    """

    media_type = "text/html"

    def __init__(self, pieces: AsyncGenerator[str, None]) -> None:
        self._pieces = pieces
        super().__init__(pieces, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._pieces):
            await super().stream_response(send)


class _Clock:
    """Wakes a stream every POLL_SECONDS: brokers do not notify of dead letters."""

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        due = asyncio.Event()

        async def tick() -> None:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                due.set()

        ticking = asyncio.create_task(tick(), name="dead letters: clock")
        try:
            yield due
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])


async def _changes(streams: OpenStreams, queue_depths: QueueDepths, names: Sequence[str]) -> Events:
    """`changed` when a queue's size has changed.

    A change counts when it is seen twice: reading holds a queue for a moment.
    """
    known, last = None, None
    async with streams.changes(_Clock()) as clock:
        while await clock.wait():
            depths = await queue_depths()
            now = [depths[name].ready + (depths[name].pending or 0) for name in names if name in depths]
            known = now if known is None else known
            yield Event(name="changed", data={}) if now == last and now != known else None
            known, last = (now if now == last else known), now


def _reasons(found: Sequence[DeadLetterFacts], chosen: str | None) -> Sequence[str]:
    return sorted({each.reason for each in found} | ({chosen} if chosen else set()))


def _handling(request: Request) -> str:
    return request.url.path.rpartition("/")[2]


def _may_operate(request: Request) -> bool:
    may: Callable[[], bool] = request.scope["may_operate"]
    return may()


def _why_stopped(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "This server is ending."
    error = task.exception()
    if error is None or isinstance(error, HTTPException):
        return "" if error is None else error.detail
    log.error(LogEvent.WEB_REQUEST_FAILED, path=PATH, method="POST", exc_info=error)
    return "Something broke here; the orchestrator's log says what."
