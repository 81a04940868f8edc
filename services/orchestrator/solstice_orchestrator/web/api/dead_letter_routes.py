"""API v1 about dead letters: list, show, replay and drop them."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.broker.dead_letters.counting import counts
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.selection import Selection, condition, died_since
from solstice_common.values.times import format_timestamp
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess, DeadLetterWork
from solstice_orchestrator.web.formats.cursors import text_cursor_of, text_position_of
from solstice_orchestrator.web.formats.query_parameters import DeadLettersQuery, NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import HttpRefusal, invalid_cursor, not_found

DEAD_LETTERS: Final = "dead letters"
ListPosition = tuple[int, str, str]
"""The position of a dead letter in the list: the number of its queue, since when it is dead, and its id."""
BEGINNING: Final[ListPosition] = (-1, "", "")


class DeadLettersApi:
    """The routes below `/api/v1/dead-letters`; a dead letter is named by its id or its beginning."""

    def __init__(self, access: DeadLetterAccess | None) -> None:
        self._access = access

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/dead-letters", self.dead_letters),
            Route("/dead-letters/{dead_letter}", self.dead_letter),
            Route("/dead-letters/{dead_letter}/{handling}", self.handle, methods=["POST"]),
        ]

    async def dead_letters(self, request: Request) -> Response:
        """One page of dead letters, and how many there are.

        Of each queue the oldest come first. It changes nothing.
        """
        query = parse_query(request, DeadLettersQuery)
        selection, filters = _selection(query), query.filters()
        access = self._available()
        routes = access.routes([query.queue] if query.queue else [])
        queues = [each.dlq for each in routes]
        after = BEGINNING if query.after is None else _position_in(query.after, queues, filters)
        found = await access.browse(routes, selection)
        positions = sorted((_position(each, queues), number) for number, each in enumerate(found))
        behind = [found[number] for position, number in positions if position > after]
        shown = behind[: query.limit]
        return _answer(
            {
                "dead_letters": [each.document() for each in shown],
                "counts": counts(found, datetime.now(UTC)).document(),
                "next": _cursor(shown[-1], filters) if len(behind) > len(shown) else None,
            }
        )

    async def dead_letter(self, request: Request) -> Response:
        """A whole dead letter: reason, history, headers and body; changes nothing.

        Of a body above 512 KiB it is the beginning.
        """
        parse_query(request, NoParameters)
        access = self._available()
        return _answer((await _known(access, request.path_params["dead_letter"])).whole_document())

    async def handle(self, request: Request) -> Response:
        """Replay or drop a dead letter; the answer is its last state.

        A replay publishes it again, and removes it once the broker has confirmed that.
        """
        parse_query(request, NoParameters)
        handling = request.path_params["handling"]
        if handling not in {"replay", "drop"}:
            raise not_found("handling", handling)
        access = self._available()
        found = await _known(access, request.path_params["dead_letter"])
        work = DeadLetterWork(
            access=access,
            routes=access.routes([found.dead_letter.queue]),
            ids=[found.id],
            by=f"the API, asked by {request.scope['caller']}",
        )
        if handling == "drop":
            await work.drop()
        else:
            await work.replay()
            _refuse_unsent(work, found.id)
        return _answer(found.document(), status=202)

    def _available(self) -> DeadLetterAccess:
        if self._access is None:
            raise HttpRefusal(503, "unavailable", "This server has no broker.")
        return self._access


def _answer(document: dict[str, Any], *, status: int = 200) -> Response:
    """JSON that no cache may store, in ASCII.

    The content is untrusted: half a surrogate pair, a large number or a deep list must not break the answer.
    """
    return Response(
        json.dumps(document), status, {"Cache-Control": "no-store"}, media_type="application/json"
    )


async def _known(access: DeadLetterAccess, dead_letter_id: str) -> DeadLetterFacts:
    found = await access.find(access.routes(), dead_letter_id)
    if found is None:
        raise not_found("dead letter", dead_letter_id)
    return found


def _refuse_unsent(work: DeadLetterWork, dead_letter_id: str) -> None:
    """HttpRefusal when a replay had no effect, or the broker refused it."""
    for done in work.replayed:
        if dead_letter_id in done.kept:
            raise HttpRefusal(409, "not_replayable", f"Kept: {done.kept[dead_letter_id]}.")
        if dead_letter_id in done.failed:
            raise HttpRefusal(
                503, "unavailable", f"The broker did not take it: {done.failed[dead_letter_id]}."
            )
        if done.not_read and dead_letter_id not in done.sent:
            raise HttpRefusal(503, "unavailable", f"{done.not_read}.")
        if done.broken_off:
            raise HttpRefusal(
                503, "unavailable", f"{done.broken_off}. Ask again: what is sent twice counts once."
            )


def _position(found: DeadLetterFacts, queues: Sequence[str]) -> ListPosition:
    return queues.index(found.dead_letter.queue), _since(found), found.id


def _cursor(found: DeadLetterFacts, filters: Mapping[str, object]) -> str:
    return text_cursor_of(f"{found.dead_letter.queue} {_since(found)} {found.id}", DEAD_LETTERS, filters)


def _position_in(cursor: str, queues: Sequence[str], filters: Mapping[str, object]) -> ListPosition:
    match (text_position_of(cursor, DEAD_LETTERS, filters) or "").rsplit(" ", 2):
        case [queue, since, dead_letter_id] if queue in queues:
            return queues.index(queue), since, dead_letter_id
    raise invalid_cursor()


def _since(found: DeadLetterFacts) -> str:
    return "" if found.dead_since is None else format_timestamp(found.dead_since)


def _selection(query: DeadLettersQuery) -> Selection:
    try:
        where = {} if query.where is None else dict([condition(query.where)])
    except ValueError as error:
        raise HttpRefusal(400, "invalid_parameter", f"where: {error}.") from None
    age = query.since_seconds
    return Selection(
        reason=query.reason,
        repository=query.repository,
        priority=query.priority,
        since=None if age is None else died_since(datetime.now(UTC), age),
        where=MappingProxyType(where),
    )
