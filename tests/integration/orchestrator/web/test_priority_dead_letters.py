"""Dead letters of priority classes are counted, shown and replayed with either setting."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import httpx2
import pytest
from msgspec.structs import replace

from solstice_common.broker import Broker, Message, open_broker, open_dead_letter_queues
from solstice_common.broker.dead_letters.replaying import Replay
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, Route, full_topology, jobs_route, split_jobs_route
from solstice_orchestrator.store import open_store
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from tests.builders import job_request
from tests.integration.orchestrator.stages.test_priority_queues import taking_in
from tests.servers.orchestrator_web import serve_web
from tests.traffic import wait_for_ready

SPLIT: Final = split_jobs_route(BrokerSettings.model_construct())
LIST: Final = "/api/v1/dead-letters"
BY_PRIORITY: Final = {"critical": 1, "high": 1, "default": 1, "low": 1}
CLASS_DLQS: Final = [each.dlq for each in SPLIT.classes.values()]


@pytest.fixture(params=["one", "split"])
def settings(broker_url: str, request: pytest.FixtureRequest) -> BrokerSettings:
    priorities: Literal["one", "split"] = request.param
    return BrokerSettings(amqp_url=broker_url, amqp_priorities=priorities)


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[Broker]:
    """With the queues of v1."""
    async with open_broker(broker_url, name="test") as opened:
        await opened.ready(30)
        await opened.declare(full_topology(BrokerSettings()))
        yield opened


@asynccontextmanager
async def web(broker: Broker, settings: BrokerSettings, directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serve_web(directory, dead_letters=DeadLetterAccess(broker=broker, settings=settings)) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        yield client


def dead(priority: Priority, route: Route) -> Message:
    request = job_request(priority=priority)
    return Message(
        exchange=route.dlx,
        routing_key=route.routing_key,
        body=request.encode(),
        type="jobrequest.v1",
        correlation_id=request.request_id,
        headers={"x-solstice-reason": "internal_error"},
    )


async def publish(broker: Broker, *messages: Message) -> None:
    assert all(outcome.confirmed for outcome in await broker.publish(messages))


async def test_they_are_counted_by_class_in_the_one_queue_too(
    broker: Broker, settings: BrokerSettings, tmp_path: Path
) -> None:
    await broker.declare(full_topology(settings))
    jobs = jobs_route(settings)
    await publish(broker, *(dead(each, jobs.of(each)) for each in Priority))
    async with web(broker, settings, tmp_path) as http:
        counts = (await http.get(LIST)).json()["counts"]
        assert counts["by_priority"] == BY_PRIORITY
        assert counts["by_queue"] == dict.fromkeys((jobs.of(each).dlq for each in Priority), 1) | (
            {SPLIT.dlq: 4} if settings.amqp_priorities == "one" else {}
        )
        for query, total in [
            ({"queue": "requests"}, 4),
            ({"queue": "requests", "priority": "critical"}, 1),
            ({"queue": jobs.of(Priority.LOW).dlq, "priority": "low"}, 1),
            ({"queue": "statuses"}, 0),
        ]:
            assert (await http.get(LIST, params=query)).json()["counts"]["total"] == total, query
        page = (await http.get("/dead-letters")).text
        assert 'Requests <span class="quiet">4</span>' in page
        for each in Priority:
            assert f">{each} 1</a>" in page
            assert f"<code>{jobs.of(each).dlq}</code>" in page


async def test_those_of_classes_stay_visible_after_switching_back_and_take_the_one_queue(
    broker: Broker, broker_url: str, tmp_path: Path
) -> None:
    settings = BrokerSettings(amqp_url=broker_url)
    await broker.declare(SPLIT.topology(QueueType.QUORUM))
    await publish(broker, *(dead(each, SPLIT.of(each)) for each in Priority))
    async with web(broker, settings, tmp_path) as http:
        found = (await http.get(LIST)).json()
        assert found["counts"]["by_priority"] == BY_PRIORITY
        (critical,) = [each["id"] for each in found["dead_letters"] if each["priority"] == "critical"]
        assert (await http.post(f"{LIST}/{critical}/replay")).status_code == 202
        (low,) = [each["id"] for each in found["dead_letters"] if each["priority"] == "low"]
        assert (await http.post(f"{LIST}/{low}/drop")).status_code == 202
        assert (await http.get(LIST)).json()["counts"]["by_priority"] == {"high": 1, "default": 1}
    await wait_for_ready(broker, SPLIT.queue, 1)
    for each in SPLIT.classes.values():
        await wait_for_ready(broker, each.queue, 0)


async def test_with_one_queue_no_page_speaks_of_queues_that_are_not_there(
    broker: Broker, broker_url: str, tmp_path: Path
) -> None:
    settings = BrokerSettings(amqp_url=broker_url)
    async with web(broker, settings, tmp_path) as http:
        page = (await http.get("/dead-letters")).text
        assert SPLIT.dlq in page
        assert [name for name in CLASS_DLQS if name in page] == []
        assert (await http.get(LIST)).json()["counts"]["total"] == 0
    assert [await broker.depth(name) for name in CLASS_DLQS] == [None] * 3


async def test_replay_goes_by_class_and_says_what_came_back_to_another_queue(
    broker: Broker, broker_url: str, tmp_path: Path
) -> None:
    """Those of before the switch come back to the queue of their class."""
    settings = BrokerSettings(amqp_url=broker_url, amqp_priorities="split")
    await broker.declare(full_topology(settings))
    critical = SPLIT.of(Priority.CRITICAL)
    wrong, good = (dead(Priority.CRITICAL, SPLIT) for _ in range(2))
    wrong = replace(wrong, body=wrong.body.replace(b'"commit_sha":"', b'"commit_sha":"x'))
    await publish(broker, wrong, good)
    async with (
        open_store(f"sqlite:///{tmp_path / 'store.db'}") as store,
        open_dead_letter_queues(broker_url, name="test") as queues,
        taking_in(broker, store, settings),
    ):
        replay = Replay(
            broker=broker,
            queues=queues,
            dlq=SPLIT.dlq,
            route=SPLIT,
            selection=Selection(),
            replay_id="replay-1",
            by="a test",
        )
        report = await replay.run(watch_seconds=3.0)
        (run,) = (await store.runs(limit=5)).runs
    assert run.request_id == good.correlation_id
    assert len(report.sent) == 2
    (back,) = report.came_back
    assert (back.reason, back.dead_letter.queue) == ("invalid_field", critical.dlq)
    await wait_for_ready(broker, SPLIT.dlq, 0)
    await wait_for_ready(broker, critical.dlq, 1)
