"""API v1 about dead letters: its answers and refusals, over scripted access."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import urlencode

import httpx2
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from solstice_common.broker import Broker
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of
from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.dead_letters.dead_letter_routes import DeadLetterRoute, chosen_routes
from solstice_common.broker.dead_letters.replaying import Replayed
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, jobs_route
from solstice_orchestrator.web.api.dead_letter_routes import DEAD_LETTERS, DeadLettersApi
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess, DeadLetterWork
from solstice_orchestrator.web.formats.cursors import text_cursor_of
from solstice_orchestrator.web.formats.query_parameters import DeadLettersQuery
from solstice_orchestrator.web.formats.refusals import HttpRefusal

SETTINGS: Final = BrokerSettings.model_construct()
DLQ: Final = jobs_route(SETTINGS).dlq
EVERY_DLQ: Final = [each.dlq for each in chosen_routes(SETTINGS, ())]
HALF_A_PAIR: Final = "\ud800"


def dead(
    body: bytes = b"{}", *, reason: str = "not_json", queue: str = DLQ, hours: int = 2, **headers: object
) -> DeadLetterFacts:
    return facts_of(
        DeadLetter(
            queue=queue,
            body=body,
            headers={"x-solstice-reason": reason, **headers},
            timestamp=datetime.now(UTC) - timedelta(hours=hours),
        )
    )


@dataclass(frozen=True, kw_only=True)
class ScriptedAccess(DeadLetterAccess):
    """Access to the dead letters of a list; it remembers the requested ones."""

    # Replays and removals are scripted too, so nothing is published.
    broker: Broker = field(default_factory=lambda: cast("Broker", None))
    settings: BrokerSettings = SETTINGS
    found: Sequence[DeadLetterFacts] = ()
    readings: list[tuple[list[str], Selection]] = field(default_factory=list)

    async def browse(self, routes: Iterable[DeadLetterRoute], selection: Selection) -> list[DeadLetterFacts]:
        self.readings.append(([each.dlq for each in routes], selection))
        return list(self.found)

    async def find(self, routes: Iterable[DeadLetterRoute], dead_letter_id: str) -> DeadLetterFacts | None:
        self.readings.append(([each.dlq for each in routes], Selection(ids=(dead_letter_id,))))
        return next((each for each in self.found if each.id.startswith(dead_letter_id)), None)


class Works:
    """Records replays and removals, and scripts the results of replays."""

    def __init__(self) -> None:
        self.replays: list[DeadLetterWork] = []
        self.removals: list[DeadLetterWork] = []
        self.result: Callable[[Replayed], None] = lambda _: None

    async def replay(self, work: DeadLetterWork) -> None:
        self.replays.append(work)
        # The first queue of a replay may be one in which the dead letter was not.
        for queue in ("another.dlq", DLQ):
            work.replayed.append(Replayed(replay_id="r", queue=queue))
        self.result(work.replayed[-1])

    async def drop(self, work: DeadLetterWork) -> None:
        self.removals.append(work)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Works:
    scripted = Works()

    async def replay(work: DeadLetterWork) -> None:
        await scripted.replay(work)

    async def drop(work: DeadLetterWork) -> None:
        await scripted.drop(work)

    monkeypatch.setattr(DeadLetterWork, "replay", replay)
    monkeypatch.setattr(DeadLetterWork, "drop", drop)
    return scripted


async def call(access: DeadLetterAccess | None, method: str, path: str) -> httpx2.Response:
    """The answer of the API below `/dead-letters`."""

    def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HttpRefusal)
        return JSONResponse({"code": error.code, "message": error.detail}, error.status_code)

    routed = Starlette(routes=DeadLettersApi(access).routes(), exception_handlers={HttpRefusal: refused})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await routed({**scope, "caller": "ada"}, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://api") as client:
        return await client.request(method, f"/dead-letters{path}")


async def refusal(access: DeadLetterAccess | None, method: str, path: str) -> tuple[int, str, str]:
    answer = await call(access, method, path)
    document = answer.json()
    return answer.status_code, document["code"], document["message"]


async def test_list_has_the_first_of_them_and_the_counts_of_all() -> None:
    found = [dead(b"1", hours=5), dead(b"2", hours=4), dead(b"3", reason="internal_error")]
    answer = await call(ScriptedAccess(found=found), "GET", "?limit=2")
    assert answer.status_code == 200
    assert answer.json()["dead_letters"] == [each.document() for each in found[:2]]
    counts = answer.json()["counts"]
    assert (counts["total"], counts["by_reason"]) == (3, {"not_json": 2, "internal_error": 1})
    assert counts["by_age"] == {"under 1 day": 3}


async def pages(access: DeadLetterAccess, query: str = "limit=2") -> AsyncIterator[list[str]]:
    """The ids of each page in turn."""
    after: str | None = ""
    while after is not None:
        page = (await call(access, "GET", f"?{query}&after={after}")).json()
        yield [each["id"] for each in page["dead_letters"]]
        after = page["next"]


async def test_pages_have_each_dead_letter_once_also_where_many_died_at_once() -> None:
    at_once = [dead(b"%d" % number, hours=3) for number in range(4)]
    found = [
        *(replace(each, dead_since=at_once[0].dead_since) for each in at_once),
        dead(b"no time", hours=0).brief(),
        dead(b"other queue", queue=CANCELS.dlq, hours=9),
        # A copy has the id of its original.
        dead(b"other queue", queue=CANCELS.dlq, hours=9),
    ]
    found[4] = replace(found[4], dead_since=None)
    ids = [each.id for each in found[:6]]
    seen = [page async for page in pages(ScriptedAccess(found=found[:6]))]
    assert [len(page) for page in seen] == [2, 2, 2]
    # Unknown times come first, and one queue after the other.
    assert [seen[0][0], seen[2][1]] == ids[4:]
    assert sorted(each for page in seen for each in page) == sorted(ids)


async def test_pages_go_on_behind_one_that_is_gone_and_show_what_came_meanwhile() -> None:
    found = [dead(b"%d" % number, hours=9 - number) for number in range(5)]
    access = ScriptedAccess(found=list(found))
    first = (await call(access, "GET", "?limit=2")).json()
    later = dead(b"later", hours=1)
    access = ScriptedAccess(found=[found[0], *found[2:], later])
    rest = (await call(access, "GET", f"?limit=9&after={first['next']}")).json()
    assert [each["id"] for each in rest["dead_letters"]] == [each.id for each in (*found[2:], later)]
    assert rest["next"] is None


@pytest.mark.parametrize("query", ["limit=2&reason=not_json", "limit=2&queue=cancels", "limit=2&where=a=b"])
async def test_cursor_of_other_filters_is_refused(query: str) -> None:
    access = ScriptedAccess(found=[dead(b"%d" % number) for number in range(3)])
    cursor = (await call(access, "GET", "?limit=2")).json()["next"]
    status, code, message = await refusal(access, "GET", f"?{query}&after={cursor}")
    assert (status, code) == (400, "invalid_cursor")
    assert "begin without it" in message
    # Another limit is no other filter.
    assert (await call(access, "GET", f"?limit=1&after={cursor}")).status_code == 200


def text_cursor(place: str) -> str:
    """A cursor with the right check at a place that we never give."""
    return text_cursor_of(place, DEAD_LETTERS, DeadLettersQuery().filters())


@given(st.text(max_size=60) | st.text("q 20\N{SNOWMAN}", max_size=60).map(text_cursor))
def test_wrong_cursor_is_refused(cursor: str) -> None:
    """Also one with the right check, which no secret goes into."""
    assume(cursor)
    answer = asyncio.run(
        refusal(ScriptedAccess(), "GET", f"?{urlencode({'after': cursor}, errors='replace')}")
    )
    assert answer[:2] in {(400, "invalid_cursor"), (400, "invalid_parameter")}


async def test_without_filters_all_queues_are_read_for_every_dead_letter() -> None:
    access = ScriptedAccess()
    await call(access, "GET", "")
    ((queues, selection),) = access.readings
    assert queues == EVERY_DLQ
    assert selection.takes_all


async def test_each_filter_is_passed_on() -> None:
    access, before = ScriptedAccess(), datetime.now(UTC)
    query = "queue=cancels&reason=not_json&repository=a/b&priority=high&since_seconds=60&where=x-a=b=c"
    await call(access, "GET", f"?{query}")
    ((queues, selection),) = access.readings
    assert queues == [CANCELS.dlq]
    assert (selection.reason, selection.repository, selection.priority) == ("not_json", "a/b", Priority.HIGH)
    assert dict(selection.where) == {"x-a": "b=c"}
    assert selection.since is not None
    minute = timedelta(seconds=60)
    assert before - minute <= selection.since <= datetime.now(UTC) - minute


async def test_condition_without_a_value_is_refused_with_an_example() -> None:
    status, code, message = await refusal(ScriptedAccess(), "GET", "?where=x-a")
    assert (status, code) == (400, "invalid_parameter")
    assert message == (
        "where: 'x-a' is no condition: write HEADER=VALUE, such as x-solstice-queue=solstice.jobs.v1."
    )


async def test_dead_letter_is_shown_whole_under_the_beginning_of_its_id() -> None:
    found = dead(b'{"a": 1}', odd=HALF_A_PAIR)
    access = ScriptedAccess(found=[found])
    answer = await call(access, "GET", f"/{found.id[:6]}")
    assert (answer.status_code, answer.json()) == (200, found.whole_document())
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content.isascii()
    ((queues, _),) = access.readings
    assert queues == EVERY_DLQ


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/abcd"), ("POST", "/abcd/replay"), ("POST", "/abcd/drop")]
)
async def test_unknown_dead_letter_is_not_found(method: str, path: str, works: Works) -> None:
    answer = await refusal(ScriptedAccess(), method, path)
    assert answer == (404, "not_found", "There is no dead letter 'abcd' here.")
    assert (works.replays, works.removals) == ([], [])


async def test_unknown_handling_is_not_found(works: Works) -> None:
    found = dead()
    answer = await refusal(ScriptedAccess(found=[found]), "POST", f"/{found.id}/mangle")
    assert answer == (404, "not_found", "There is no handling 'mangle' here.")
    assert (works.replays, works.removals) == ([], [])


@pytest.mark.parametrize("handling", ["replay", "drop"])
async def test_handling_is_of_one_dead_letter_in_its_queue_and_names_the_caller(
    handling: str, works: Works
) -> None:
    found = dead()
    access = ScriptedAccess(found=[found, dead(b"another")])
    answer = await call(access, "POST", f"/{found.id[:8]}/{handling}")
    assert (answer.status_code, answer.json()) == (202, found.document())
    done, other = works.replays, works.removals
    if handling == "drop":
        done, other = other, done
    assert other == []
    (work,) = done
    assert (work.access, [each.dlq for each in work.routes], work.ids) == (access, [DLQ], [found.id])
    assert work.by == "the API, asked by ada"


def not_replayable(found: DeadLetterFacts) -> Callable[[Replayed], None]:
    return lambda replayed: replayed.kept.update({found.id: "its run has ended"})


def failed(found: DeadLetterFacts) -> Callable[[Replayed], None]:
    return lambda replayed: replayed.failed.update({found.id: "the queue is full"})


def broken_off(_: DeadLetterFacts) -> Callable[[Replayed], None]:
    return lambda replayed: setattr(replayed, "broken_off", "the link was lost")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (not_replayable, (409, "not_replayable", "Kept: its run has ended.")),
        (failed, (503, "unavailable", "The broker did not take it: the queue is full.")),
        (broken_off, (503, "unavailable", "the link was lost. Ask again: what is sent twice counts once.")),
    ],
)
async def test_replay_without_an_effect_is_refused_with_its_cause(
    result: Callable[[DeadLetterFacts], Any], expected: tuple[int, str, str], works: Works
) -> None:
    found = dead()
    works.result = result(found)
    assert await refusal(ScriptedAccess(found=[found]), "POST", f"/{found.id}/replay") == expected


async def test_result_of_another_dead_letter_refuses_nothing(works: Works) -> None:
    found, other = dead(), dead(b"another")

    def result(replayed: Replayed) -> None:
        not_replayable(other)(replayed)
        failed(other)(replayed)

    works.result = result
    assert (await call(ScriptedAccess(found=[found]), "POST", f"/{found.id}/replay")).status_code == 202


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/abcd"), ("POST", "/abcd/replay")])
async def test_without_a_broker_nothing_is_available(method: str, path: str) -> None:
    assert await refusal(None, method, path) == (503, "unavailable", "This server has no broker.")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/abcd?x=1"), ("POST", "/abcd/drop?x=1"), ("GET", "?x=1")]
)
async def test_unknown_parameter_is_refused(method: str, path: str, works: Works) -> None:
    status, code, message = await refusal(ScriptedAccess(), method, path)
    assert (status, code) == (400, "invalid_parameter")
    assert message.startswith("'x' is not known here")


async def test_reading_changes_nothing_by_post_and_handling_needs_it() -> None:
    access = ScriptedAccess(found=[dead()])
    assert (await call(access, "POST", "")).status_code == 405
    assert (await call(access, "GET", "/abcd/replay")).status_code == 405
    assert access.readings == []
