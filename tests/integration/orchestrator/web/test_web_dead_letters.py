"""API v1 about dead letters, over a real store and each broker."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import msgspec
import pytest

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.broker.dead_letters import other_readers
from solstice_common.broker.rabbitmq.tools import rabbitmq_dead_letters
from solstice_common.http.tokens import TokenScope
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_common.values.times import format_timestamp
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from tests.builders import job_request
from tests.contract.test_broker import drain
from tests.dead_letter_replays import another_reader
from tests.servers.orchestrator_web import serve_web
from tests.servers.tokens import bearer, make_token
from tests.traffic import wait_for_ready

ROUTE = jobs_route(BrokerSettings())
LIST = "/api/v1/dead-letters"


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[Broker]:
    async with open_broker(broker_url, name="test") as opened:
        await opened.ready(30)
        await opened.declare(full_topology(BrokerSettings()))
        await opened.publish(
            [
                dead("internal_error", {"x-solstice-refused-at": refused_at(3)}),
                dead("not_json", {"x-solstice-refused-at": refused_at(2)}),
                dead("agent_lost", {"x-solstice-refused-at": refused_at(1), "x-solstice-run": "run-7"}),
            ]
        )
        await wait_for_ready(opened, ROUTE.dlq, 3)
        yield opened


@pytest.fixture
async def http(tmp_path: Path, broker: Broker, broker_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    access = DeadLetterAccess(broker=broker, settings=BrokerSettings(amqp_url=broker_url))
    async with (
        serve_web(tmp_path, dead_letters=access) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client,
    ):
        yield client


def refused_at(seconds: int) -> str:
    """So many seconds ago."""
    return format_timestamp(datetime.now(UTC) - timedelta(seconds=seconds))


def dead(reason: str, headers: dict[str, str] | None = None) -> Message:
    request = job_request()
    return Message(
        exchange=ROUTE.dlx,
        routing_key=ROUTE.routing_key,
        body=request.encode(),
        type="jobrequest.v1",
        correlation_id=request.request_id,
        headers={"x-solstice-reason": reason, "x-solstice-idempotency-key": "k", **(headers or {})},
    )


async def ids(http: httpx2.AsyncClient) -> dict[str, str]:
    """The ids by reason."""
    found = (await http.get(LIST)).json()["dead_letters"]
    return {each["reason"]: each["id"] for each in found}


async def test_they_are_listed_counted_and_filtered(http: httpx2.AsyncClient) -> None:
    whole = (await http.get(LIST)).json()
    assert [each["reason"] for each in whole["dead_letters"]] == ["internal_error", "not_json", "agent_lost"]
    assert whole["counts"]["total"] == 3
    for query, total in [
        ({"reason": "not_json"}, 1),
        ({"queue": "statuses"}, 0),
        ({"queue": ROUTE.dlq}, 3),
        ({"repository": "lantern/*"}, 3),
        ({"priority": "low"}, 0),
        ({"where": "x-solstice-run=run-7"}, 1),
        ({"since_seconds": "600"}, 3),
    ]:
        found = (await http.get(LIST, params=query)).json()
        assert found["counts"]["total"] == total, query
    assert len((await http.get(LIST, params={"limit": 2})).json()["dead_letters"]) == 2


async def test_pages_have_each_once_while_others_come_and_go(
    http: httpx2.AsyncClient, broker: Broker
) -> None:
    whole = [each["id"] for each in (await http.get(LIST)).json()["dead_letters"]]
    first = (await http.get(LIST, params={"limit": 1})).json()
    assert [each["id"] for each in first["dead_letters"]] == whole[:1]
    assert first["counts"]["total"] == 3
    # The one that the cursor names goes, and another comes.
    assert (await http.post(f"{LIST}/{whole[0]}/drop")).status_code == 202
    await broker.publish([dead("later", {"x-solstice-refused-at": "2999-01-01T00:00:00.000Z"})])
    await wait_for_ready(broker, ROUTE.dlq, 3)
    second = (await http.get(LIST, params={"limit": 1, "after": first["next"]})).json()
    rest = (await http.get(LIST, params={"after": second["next"], "limit": 200})).json()
    assert [each["id"] for each in (*second["dead_letters"], *rest["dead_letters"][:-1])] == whole[1:]
    assert (rest["dead_letters"][-1]["reason"], rest["next"]) == ("later", None)


async def test_one_is_shown_whole(http: httpx2.AsyncClient) -> None:
    which = (await ids(http))["not_json"]
    shown = (await http.get(f"{LIST}/{which[:6]}")).json()
    assert shown["id"] == which
    assert shown["headers"]["x-solstice-idempotency-key"] == "k"
    assert "lantern/harbour" in shown["body"]


async def test_what_a_stranger_wrote_spoils_no_answer(http: httpx2.AsyncClient, broker: Broker) -> None:
    """Half a character in the body, which only an escape can carry."""
    hostile = msgspec.structs.replace(dead("hostile"), body=b'{"repo_full_name": "\\ud800"}')
    await broker.publish([hostile])
    await wait_for_ready(broker, ROUTE.dlq, 4)
    listed = await http.get(LIST)
    assert listed.status_code == 200
    (found,) = [each for each in listed.json()["dead_letters"] if each["reason"] == "hostile"]
    assert found["repository"] == "\ud800"
    shown = await http.get(f"{LIST}/{found['id']}")
    assert (shown.status_code, shown.json()["body"]) == (200, hostile.body.decode())
    for page in ("/dead-letters", "/dead-letters/list", f"/dead-letters/{found['id']}"):
        assert (await http.get(page)).status_code == 200, page
    assert (await http.post(f"{LIST}/{found['id']}/drop")).status_code == 202


async def test_what_another_reader_holds_is_no_empty_queue(
    http: httpx2.AsyncClient, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = (await ids(http))["not_json"]
    monkeypatch.setattr(other_readers, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(rabbitmq_dead_letters, "LEFT_SECONDS", 0.1)
    async with another_reader(broker_url):
        pages = [
            *("/dead-letters", "/dead-letters/list", f"/dead-letters/{which}", "/dead-letters/replay"),
            *(LIST, f"{LIST}/{which}"),
        ]
        answers = [await http.get(path) for path in pages]
        answers += [await http.post(f"{LIST}/{which}/{handling}") for handling in ("replay", "drop")]
    reasons = ["another reader" in each.text and ROUTE.dlq in each.text for each in answers]
    assert ([each.status_code for each in answers], reasons) == ([503] * 8, [True] * 8)
    assert len(await ids(http)) == 3


async def test_a_replay_publishes_it_and_a_drop_removes_it(http: httpx2.AsyncClient, broker: Broker) -> None:
    known = await ids(http)
    replayed = await http.post(f"{LIST}/{known['internal_error']}/replay")
    assert (replayed.status_code, replayed.json()["id"]) == (202, known["internal_error"])
    (delivery,) = await drain(broker, ROUTE.queue, 1)
    assert "internal_error" in str(delivery.headers["x-solstice-history"])
    dropped = await http.post(f"{LIST}/{known['not_json']}/drop")
    assert dropped.status_code == 202
    await wait_for_ready(broker, ROUTE.dlq, 1)
    assert (await http.post(f"{LIST}/{known['not_json']}/drop")).status_code == 404


async def test_a_request_that_is_a_run_is_kept(http: httpx2.AsyncClient, broker: Broker) -> None:
    refused = await http.post(f"{LIST}/{(await ids(http))['agent_lost']}/replay")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_replayable")
    assert "solstice rerun run-7" in refused.json()["error"]["message"]
    await wait_for_ready(broker, ROUTE.dlq, 3)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"queue": "nothing"}, "invalid_parameter"),
        ({"where": "x"}, "invalid_parameter"),
        ({"colour": "red"}, "invalid_parameter"),
        ({"after": "x"}, "invalid_cursor"),
    ],
)
async def test_a_wrong_question_is_refused(
    http: httpx2.AsyncClient, query: dict[str, str], code: str
) -> None:
    answer = await http.get(LIST, params=query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize("path", ["abcdef0123456789", "ab"])
async def test_an_unknown_one_is_not_found(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.get(f"{LIST}/{path}")).status_code == 404
    assert (await http.post(f"{LIST}/{path}/replay")).status_code == 404
    assert (await http.post(f"{LIST}/{path}/burn")).status_code == 404


async def test_changing_needs_operate_and_looking_read(http: httpx2.AsyncClient, tmp_path: Path) -> None:
    known = await ids(http)
    tokens = tmp_path / "tokens.json"
    reader = bearer(make_token(tokens, "reader", TokenScope.READ))
    operator = bearer(make_token(tokens, "operator", TokenScope.READ, TokenScope.OPERATE))
    where = f"{LIST}/{known['internal_error']}"
    for headers, seen, done in [({}, 401, 401), (reader, 200, 403), (operator, 200, 202)]:
        assert (await http.get(LIST, headers=headers)).status_code == seen
        assert (await http.get(where, headers=headers)).status_code == seen
        assert (await http.post(f"{where}/drop", headers=headers)).status_code == done


async def test_without_a_broker_it_says_so(tmp_path: Path, broker: Broker) -> None:
    away = DeadLetterAccess(broker=broker, settings=BrokerSettings(amqp_url="amqp://127.0.0.1:9/%2f"))
    async with (
        serve_web(tmp_path, dead_letters=away) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client,
    ):
        answer = await client.get(LIST)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "127.0.0.1:9" in answer.json()["error"]["message"]
