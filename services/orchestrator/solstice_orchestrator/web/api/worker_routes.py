"""API v1 of workers: their list, and orders to them."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.scheduling.workers import (
    DrainOrder,
    OrderRefusal,
    PauseOrder,
    QuarantineOrder,
    ResumeOrder,
    WorkerOrder,
    WorkerView,
)
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.following import follow_workers
from solstice_orchestrator.web.api.runs import answer, stream
from solstice_orchestrator.web.formats.api_json import worker_document
from solstice_orchestrator.web.formats.query_parameters import NoParameters, OrderQuery, parse_query
from solstice_orchestrator.web.formats.refusals import HttpRefusal, not_found
from solstice_orchestrator.web.formats.sse import OpenStreams

QUARANTINE_SECONDS: Final = 3600
"""The length of a quarantine when the order does not give one."""

_WHY_NOT: Final = {
    OrderRefusal.IS_DRAINING: "is draining and ends soon, which nothing takes back: start it again instead",
    OrderRefusal.IS_GONE: "is not there any more, so there is nothing to drain",
}


class WorkersApi:
    """The routes below `/api/v1/workers`."""

    def __init__(self, store: JobStore, streams: OpenStreams) -> None:
        self._store = store
        self._streams = streams

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/workers", self.workers),
            Route("/workers/events", self.events),
            Route("/workers/{worker_id}", self.worker),
            Route("/workers/{worker_id}/{order}", self.steer, methods=["POST"]),
        ]

    async def workers(self, request: Request) -> Response:
        """Every worker, by name."""
        parse_query(request, NoParameters)
        return answer({"workers": [worker_document(worker) for worker in await self._store.workers()]})

    async def worker(self, request: Request) -> Response:
        """One worker with its jobs."""
        parse_query(request, NoParameters)
        worker_id = request.path_params["worker_id"]
        worker = await self._store.worker(worker_id)
        if worker is None:
            raise not_found("worker", worker_id)
        return answer(worker_document(worker))

    async def events(self, request: Request) -> Response:
        """An event at each change of the workers."""
        parse_query(request, NoParameters)
        return stream(request, follow_workers(self._store, self._streams))

    async def steer(self, request: Request) -> Response:
        """Pause, resume, drain or quarantine a worker."""
        return answer(worker_document(await steered(self._store, request)), status=202)


async def steered(store: JobStore, request: Request) -> WorkerView:
    """Give the order of the path to its worker, and return the worker."""
    worker_id, order = request.path_params["worker_id"], requested_order(request)
    worker = await store.steer_worker(worker_id, order)
    if worker is None:
        raise not_found("worker", worker_id)
    if isinstance(worker, OrderRefusal):
        raise HttpRefusal(409, worker.value, f"Worker {worker_id!r} {_WHY_NOT[worker]}.")
    return worker


def requested_order(request: Request) -> WorkerOrder:
    """The order at the end of the path.

    `seconds` of the query says how long a quarantine lasts.
    """
    match request.path_params["order"]:
        case "pause":
            return PauseOrder()
        case "resume":
            return ResumeOrder()
        case "drain":
            return DrainOrder()
        case "quarantine":
            seconds = parse_query(request, OrderQuery).seconds or QUARANTINE_SECONDS
            return QuarantineOrder(seconds=float(seconds))
        case unknown:
            raise not_found("order", unknown)
