"""Serves `GET /api/v1/deliveries` and `/api/v1/deliveries/{id}`: deliveries and their decisions."""

from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from solstice_common.http.access import Caller
from solstice_common.values.times import parse_timestamp
from solstice_forge.api.access import json, refused
from solstice_forge.api.api_models import Deliveries, DeliveriesQuery, Delivery, WholeDelivery, fields_of
from solstice_forge.api.request_delivery import problems_of
from solstice_forge.decisions.triage import MAX_NAME, Refused
from solstice_forge.inbox.log import DeliveryFilter, DeliveryLog, RecordedDelivery

LONGEST_NUMBER: Final = 16
RELATED: Final = 20
"""How many copies and replays are shown with a delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLog:
    """The decision log, for programs."""

    log: DeliveryLog

    async def page(self, request: Request, _: Caller) -> Response:
        """Return one page of deliveries, newest first."""
        query = read_query(request.query_params.multi_items())
        if isinstance(query, Refused):
            return refused(query)
        filters = DeliveryFilter(
            source=query.source,
            repository=query.repository,
            decision=query.decision,
            reason=query.reason,
            since=None if query.since is None else parse_timestamp(query.since).timestamp(),
        )
        listed = await self.log.entries(filters, limit=query.limit, before=query.after)
        page = Deliveries(
            deliveries=[Delivery(**fields_of(entry)) for entry in listed.entries], next=listed.next
        )
        return json(page.model_dump(mode="json"))

    async def one(self, request: Request, _: Caller) -> Response:
        """Return one delivery, by its number here or by the sender's id.

        Of several with that id, the first.
        """
        name = str(request.path_params["id"])
        recorded = await self._recorded(name)
        if recorded is None:
            return refused(
                Refused(
                    status=404,
                    reason="not_found",
                    detail=f"there is no delivery {name[:100]!r} here: it never came, was refused, or was removed",
                )
            )
        number = recorded.entry.row_id
        copies = await self.log.copies_of(number, limit=RELATED)
        replays = await self.log.replays_of(number, limit=RELATED)
        document = WholeDelivery(
            **fields_of(recorded.entry),
            headers=dict(recorded.headers),
            body_bytes=len(recorded.body),
            request=None if recorded.request is None else orjson.loads(recorded.request),
            copies=[Delivery(**fields_of(entry)) for entry in copies],
            replays=[Delivery(**fields_of(entry)) for entry in replays],
        )
        return json(document.model_dump(mode="json"))

    async def _recorded(self, name: str) -> RecordedDelivery | None:
        if not name.isascii() or not name.isprintable() or len(name) > MAX_NAME:
            return None
        numbers = [int(name)] if name.isdecimal() and len(name) <= LONGEST_NUMBER else []
        for number in (*numbers, *await self.log.numbers_of(name)):
            if recorded := await self.log.recorded(number):
                return recorded
        return None


def read_query(items: list[tuple[str, str]]) -> DeliveriesQuery | Refused:
    """Read the parameters of the query.

    An unknown or repeated name is refused, not ignored.
    """
    parameters: dict[str, Any] = {}
    for name, value in items:
        if name in parameters:
            return _invalid(f"{name} stands there twice")
        if name not in DeliveriesQuery.model_fields:
            return _invalid(
                f"{name[:100]!r} is not known; known are {', '.join(DeliveriesQuery.model_fields)}"
            )
        parameters[name] = value
    try:
        return DeliveriesQuery.model_validate_strings(parameters)
    except ValidationError as error:
        return _invalid(problems_of(error))


def _invalid(detail: str) -> Refused:
    return Refused(status=400, reason="invalid_parameter", detail=detail)
