"""API v1 for autoscalers: the work for each label, and the slots it takes."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.queue_times.demand import TARGET_SECONDS, demands, total_demand
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.runs import answer
from solstice_orchestrator.web.formats.api_json import scale_document
from solstice_orchestrator.web.formats.query_parameters import ScaleQuery, parse_query


class ScaleApi:
    """The route `/scale`."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [Route("/scale", self.scale)]

    async def scale(self, request: Request) -> Response:
        """The work to do, in total and for each label."""
        query = parse_query(request, ScaleQuery)
        target = TARGET_SECONDS if query.target_seconds is None else float(query.target_seconds)
        facts = await self._store.demand(target, query.label)
        # In a thread: adding up the jobs of ten thousand repositories takes a while.
        demands_of_labels = await asyncio.to_thread(demands, facts, target_seconds=target, label=query.label)
        delayed = (
            sum(facts.delayed.values()) if query.label is None else demands_of_labels[query.label].delayed
        )
        return answer(
            scale_document(
                facts.now, target, total_demand(demands_of_labels.values(), delayed), demands_of_labels
            )
        )
