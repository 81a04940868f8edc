"""Recorded deliveries of real forges through the service: HTTP in, requests on the broker out."""

import pytest

from solstice_common.broker import open_broker
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import content_key
from solstice_forge.decisions.sources import FORGES
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import Ignored
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import received
from tests.webhooks.corpus import CORPUS, NO_CORPUS, Recorded, recorded


def expected_of(one: Recorded, seen: set[str]) -> tuple[int, str]:
    """Status and decision; a second delivery with the same content makes no second run."""
    understood = triage(one.source, one.headers("headers"), one.body, now=one.clock)
    assert isinstance(understood, UnderstoodDelivery)
    if isinstance(understood.event, Ignored):
        return 200, "ignored"
    key = content_key(understood.event, one.source, understood.delivery_id)
    if key in seen:
        return 200, "duplicate"
    seen.add(key)
    return 202, "accepted"


async def test_recorded_deliveries_become_requests_in_order(
    make_settings: MakeSettings, running: Running
) -> None:
    if CORPUS is None:
        pytest.skip(NO_CORPUS)
    secrets = {
        f"{origin}_webhook_secret": ",".join(
            sorted({one.meta["auth"]["secret"] for one in recorded().values() if one.meta["forge"] == origin})
        )
        for origin in FORGES
    }
    settings, seen, request_ids = make_settings(**secrets), set[str](), list[str]()
    async with running(settings) as client:
        for name, one in recorded().items():
            answer = await client.post(
                f"/webhooks/{one.meta['forge']}", content=one.body, headers=one.headers("headers")
            )
            assert (answer.status_code, answer.json()["decision"]) == expected_of(one, seen), name
            if answer.status_code == 202 and not one.meta["expected"]["needs_lookup"]:
                request_ids += answer.json()["request_ids"]
        async with open_broker(settings.amqp_url, name="test") as broker:
            requests = await received(broker, settings, len(request_ids))
    assert [one.request_id for one in requests] == request_ids
    assert len(request_ids) >= 30
