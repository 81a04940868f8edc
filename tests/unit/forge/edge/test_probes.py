"""forge-integration's answers to probes about its broker."""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.edge.app import AppParts, create_app
from solstice_forge.inbox.protocol import KeepResult, NewDelivery
from solstice_forge.metrics import Metrics

DEGRADED = BrokerHealth(connected=True, degraded="not durable: set appendfsync always", transport="redis")
DETAILS = {"broker": "degraded: not durable: set appendfsync always"}


class EmptyInbox:
    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        raise AssertionError("a probe stores nothing")

    async def backlog(self) -> int:
        return 0


async def answer_of(path: str, *, require_durable: bool) -> tuple[int, dict[str, Any]]:
    app: Any = create_app(
        AppParts(
            inbox=EmptyInbox(),
            sources={"acme": WebhookSource(name="acme", forge=FORGES[Source.FORGEJO], secrets=("secret",))},
            metrics=Metrics(),
            broker_health=lambda: DEGRADED,
            require_durable=require_durable,
        )
    )
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://forge") as client:
        answer = await client.get(path)
    return answer.status_code, answer.json()


async def test_alive_names_the_broker() -> None:
    assert await answer_of("/healthz", require_durable=False) == (
        200,
        {"status": "alive", "broker": "redis", "broker_host": ""},
    )


@pytest.mark.parametrize(
    ("require_durable", "status", "missing"),
    [pytest.param(False, 200, {}, id="notice"), pytest.param(True, 503, DETAILS, id="required")],
)
async def test_degraded_broker_is_a_notice_and_not_ready_only_where_durability_is_required(
    require_durable: bool, status: int, missing: dict[str, str]
) -> None:
    found, state = await answer_of("/readyz", require_durable=require_durable)
    assert (found, state["missing"], state["notices"]) == (status, missing, DETAILS)
