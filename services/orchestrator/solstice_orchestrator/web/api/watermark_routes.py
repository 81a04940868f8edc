"""API v1 of watermarks: how far the pushes of each ref are handled."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.runs import answer
from solstice_orchestrator.web.formats.api_json import watermark_document
from solstice_orchestrator.web.formats.cursors import text_cursor_of, text_position_of
from solstice_orchestrator.web.formats.query_parameters import WatermarksQuery, parse_query
from solstice_orchestrator.web.formats.refusals import invalid_cursor

WATERMARKS: Final = "watermarks"
_BETWEEN: Final = "\n"
"""Between the repository and the ref of a cursor; neither can contain it."""


class WatermarksApi:
    """The route `/watermarks`."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [Route("/watermarks", self.watermarks)]

    async def watermarks(self, request: Request) -> Response:
        """One page of watermarks, by repository and ref."""
        query = parse_query(request, WatermarksQuery)
        filters = {"repository": query.repository, "ref": query.ref, "behind": query.behind}
        position = _BETWEEN if query.after is None else text_position_of(query.after, WATERMARKS, filters)
        if position is None:
            raise invalid_cursor()
        repository, _, ref = position.partition(_BETWEEN)
        found = await self._store.watermarks(
            limit=query.limit + 1,
            after=(repository, ref),
            repository=query.repository,
            ref=query.ref,
            behind=query.behind == "1",
        )
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            last = shown[-1]
            following = text_cursor_of(f"{last.repository}{_BETWEEN}{last.ref}", WATERMARKS, filters)
        return answer({"watermarks": [watermark_document(each) for each in shown], "next": following})
