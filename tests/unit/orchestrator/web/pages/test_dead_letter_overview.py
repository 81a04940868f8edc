"""The overview of dead letters counts each with its kind, however many there are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from starlette.requests import Request

from solstice_common.broker import Broker
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of
from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.dead_letters.dead_letter_routes import DeadLetterRoute, chosen_routes
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, jobs_route
from solstice_orchestrator.web import dead_letter_access
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.web.health import QueueDepths
from solstice_orchestrator.web.pages.dead_letter_pages import DeadLetterPages

SETTINGS = BrokerSettings.model_construct()
REQUESTS = jobs_route(SETTINGS)


@dataclass(frozen=True, kw_only=True)
class ListedAccess(DeadLetterAccess):
    """Access to the dead letters of a list."""

    broker: Broker = field(default_factory=lambda: cast("Broker", None))
    settings: BrokerSettings = SETTINGS
    found: Sequence[DeadLetterFacts]

    async def browse(self, routes: Iterable[DeadLetterRoute], selection: Selection) -> list[DeadLetterFacts]:
        del routes, selection
        return list(self.found)


def dead(queue: str, count: int) -> list[DeadLetterFacts]:
    return [facts_of(DeadLetter(queue=queue, body=b"%d" % number)) for number in range(count)]


async def overview(found: Sequence[DeadLetterFacts]) -> dict[str, int]:
    """How many the page shows of each kind."""
    shown: dict[str, int] = {}

    def render(template: str, **values: Any) -> str:
        assert template == "dead_letters.html"
        shown.update({kind: numbers.total for kind, _, numbers in values["kinds"]})
        return ""

    pages = DeadLetterPages(
        ListedAccess(found=found), cast("OpenStreams", None), cast("QueueDepths", None), render
    )
    scope = {"type": "http", "query_string": b"", "headers": [], "may_operate": lambda: True}
    await pages.overview(Request(scope))
    return shown


async def test_each_dead_letter_is_counted_with_its_kind() -> None:
    found = dead(REQUESTS.dlq, 3) + dead(CANCELS.dlq, 2) + dead(STATUSES.dlq, 1)
    assert await overview(found) == {"requests": 3, "cancels": 2, "statuses": 1}


async def test_queues_are_not_looked_up_for_each_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[Sequence[str]] = []

    def counted(settings: BrokerSettings, names: Sequence[str]) -> Sequence[DeadLetterRoute]:
        lookups.append(names)
        return chosen_routes(settings, names)

    monkeypatch.setattr(dead_letter_access, "chosen_routes", counted)
    await overview(dead(REQUESTS.dlq, 1))
    for_one = len(lookups)
    await overview(dead(REQUESTS.dlq, 100))
    assert len(lookups) - for_one == for_one
