"""Serves `/deliveries` and `/deliveries/NUMBER`: each delivery, its decision, request and statuses."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from solstice_common.errors import StoreUnavailable
from solstice_common.http.access import REALM, Access, Denied
from solstice_common.http.pages import page_environment, static_files
from solstice_common.http.tokens import TokenScope
from solstice_common.values.times import format_seconds
from solstice_forge.api.access import is_local
from solstice_forge.decisions import verdict_words
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, DeliveryLog
from solstice_forge.inbox.protocol import Decision
from solstice_forge.inbox.reconcile_state import ReconcileState, ResendRecord
from solstice_forge.reconcile.report import decode_report, sentence
from solstice_forge.statuses.protocol import ContextStatus

LIST_PARAMETERS: Final = ("source", "repository", "decision", "reason", "before")
PER_PAGE: Final = 50
RELATED: Final = 20
MAX_TEXT: Final = 200
LONGEST_NUMBER: Final = 16
BODY_SHOWN: Final = 20_000
"""Characters of a body on the page; the command prints all of it."""

SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""No script at all: the pages show untrusted text."""

PageEndpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
RefusalPage: TypeAlias = Callable[[int, str], Response]
Statuses: TypeAlias = Callable[[str], Awaitable[Sequence[ContextStatus]]]


async def no_statuses(_request_id: str) -> Sequence[ContextStatus]:
    """Return none: no statuses are reported to any forge."""
    return ()


class DeliveryPages:
    """The pages for a person's browser.

    `statuses` returns the statuses that forges show about a request.
    """

    def __init__(
        self,
        log: DeliveryLog,
        access: Access,
        *,
        sources: Sequence[str],
        version: str,
        public_url: str = "",
        statuses: Statuses = no_statuses,
        reconcile_state: ReconcileState | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._access = access
        self._sources = sources
        self._public_url = public_url
        self._statuses = statuses
        self._reconcile_state = reconcile_state
        self._clock = clock
        self._templates = page_environment(
            "solstice_forge.pages",
            home="/deliveries",
            home_name="All deliveries",
            version=version,
            public_url=public_url.rstrip("/"),
            why=verdict_words,
            tone=tone,
            rfc3339=format_seconds,
        )

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", guarded(self._access, self.home, self.error)),
            Route("/deliveries", guarded(self._access, self._safe(self.deliveries), self.error)),
            Route(
                "/deliveries/of/{delivery_id}", guarded(self._access, self._safe(self.of_forge), self.error)
            ),
            Route("/deliveries/{number}", guarded(self._access, self._safe(self.delivery), self.error)),
            static_files("solstice_forge.pages"),
        ]

    async def home(self, _: Request) -> Response:
        return RedirectResponse("/deliveries", 303)

    async def deliveries(self, request: Request) -> Response:
        """Return deliveries, newest first."""
        parameters = {
            # PostgreSQL's texts hold no zero byte.
            name: (request.query_params.get(name) or "").replace("\0", "").strip()[:MAX_TEXT]
            for name in LIST_PARAMETERS
        }
        if wrong := _wrong_parameter(request):
            return self.error(400, wrong)
        decision = Decision(parameters["decision"]) if parameters["decision"] else None
        before = _number(parameters["before"])
        filters = DeliveryFilter(
            source=parameters["source"] or None,
            repository=parameters["repository"] or None,
            decision=decision,
            reason=parameters["reason"] or None,
        )
        listed = await self._log.entries(filters, limit=PER_PAGE, before=before)
        older = urlencode({k: v for k, v in {**parameters, "before": listed.next}.items() if v})
        return self._page(
            "deliveries.html",
            entries=listed.entries,
            asked=parameters,
            filtered=any(parameters.values()),
            decisions=list(Decision),
            sources=self._sources,
            older=f"/deliveries?{older}" if listed.next is not None else None,
            compared=await self._compared(),
        )

    async def of_forge(self, request: Request) -> Response:
        """Redirect to the delivery that has this id of the forge.

        The orchestrator's pages link here, since they do not know its number.
        """
        numbers = await self._log.numbers_of(request.path_params["delivery_id"].replace("\0", ""))
        if not numbers:
            return self.error(404, "There is no delivery of this id: it never came, or was removed.")
        return RedirectResponse(f"/deliveries/{numbers[0]}", 303)

    async def delivery(self, request: Request) -> Response:
        """Return one delivery with everything stored about it."""
        number = _number(request.path_params["number"])
        recorded = None if number is None else await self._log.recorded(number)
        if recorded is None:
            return self.error(404, "There is no delivery of this number: it never came, or was removed.")
        entry = recorded.entry
        statuses = [shown for request_id in entry.request_ids for shown in await self._statuses(request_id)]
        text = recorded.body.decode("utf-8", "replace")
        return self._page(
            "delivery.html",
            entry=entry,
            request={} if recorded.request is None else orjson.loads(recorded.request),
            headers=dict(recorded.headers),
            body=text[:BODY_SHOWN],
            is_cut=len(text) > BODY_SHOWN,
            copies=await self._log.copies_of(entry.row_id, limit=RELATED),
            replays=await self._log.replays_of(entry.row_id, limit=RELATED),
            statuses=statuses,
            resends=await self._resends(entry),
        )

    async def _compared(self) -> list[tuple[str, float, str]]:
        """Return each compared source: its name, the time, and the result."""
        rounds = [] if self._reconcile_state is None else await self._reconcile_state.rounds(self._clock())
        known = [(each, decode_report(each.report)) for each in rounds if each.report is not None]
        return [
            (each.source_name, each.ended_at, sentence(report))
            for each, report in known
            if report is not None and each.ended_at is not None
        ]

    async def _resends(self, entry: DeliveryEntry) -> ResendRecord | None:
        """Return how often the forge was asked to send this delivery again, if it was."""
        if self._reconcile_state is None:
            return None
        return (await self._reconcile_state.resends(entry.source_name, [entry.delivery_id])).get(
            entry.delivery_id
        )

    def error(self, status: int, message: str) -> Response:
        """Return a page that says what is wrong and where to go."""
        return self._page("error.html", http_status=status, code=status, message=message)

    def _safe(
        self, shown: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            try:
                return await shown(request)
            except StoreUnavailable as error:
                return self.error(503, f"{error}. Try again later.")

        return answered

    def _page(self, template: str, *, http_status: int = 200, **values: Any) -> Response:
        text = self._templates.get_template(template).render(now=self._clock(), **values)
        return HTMLResponse(text, http_status)


def guarded(access: Access, shown: PageEndpoint, refusing: RefusalPage) -> PageEndpoint:
    """Return the page, for callers who may read.

    Others get `refusing` (status, sentence), and a browser asks for a login.
    """

    async def answered(request: Request) -> Response:
        verdict = access.admit(
            TokenScope.READ, authorization=request.headers.get("authorization"), is_local=is_local(request)
        )
        if isinstance(verdict, Denied):
            response = refusing(verdict.status, verdict.detail)
            if verdict.status == 401:  # noqa: PLR2004
                # The login's password is the token: browsers cannot ask for a bearer token.
                response.headers["WWW-Authenticate"] = f'Basic {REALM}, charset="UTF-8"'
        else:
            response = await shown(request)
        response.headers.update(SECURITY_HEADERS)
        return response

    return answered


def tone(entry: DeliveryEntry) -> str:
    """Return the colour of a decision, which is always shown as a word, too."""
    if entry.decision is Decision.ACCEPTED:
        return "good" if entry.published else "warn"
    return "calm"


def _wrong_parameter(request: Request) -> str | None:
    """Return what is wrong with the list's parameters; empty ones count as absent."""
    filters = {name: value.strip() for name, value in request.query_params.items() if value.strip()}
    if unknown := next((name for name in filters if name not in LIST_PARAMETERS), None):
        return f"{unknown[:MAX_TEXT]!r} is not known here; known are {', '.join(LIST_PARAMETERS)}."
    decision, before = filters.get("decision"), filters.get("before")
    if decision is not None and decision not in set(Decision):
        return f"{decision[:MAX_TEXT]!r} is no decision; there are {', '.join(Decision)}."
    if before is not None and _number(before) is None:
        return f"{before[:MAX_TEXT]!r} is no number of a delivery."
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else None
