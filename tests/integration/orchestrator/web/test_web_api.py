"""API v1, health, metrics and the guard: real store, real server, real HTTP."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.following import follow_run
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store.views import ChunkKind
from solstice_orchestrator.web.api.log_rows import LIVE_ROWS, MAX_ROWS
from solstice_orchestrator.web.app import serving
from solstice_orchestrator.web.formats import sse
from solstice_orchestrator.web.guard import SECURITY_HEADERS
from tests.polling import wait_until
from tests.servers.orchestrator_web import WORKER, WebServer, serve_web, spec
from tests.servers.server import TLS
from tests.stores import retries_after

FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="test")
LOST = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail="no route to host")
WAIT_SECONDS = 20.0


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path, retries=retries_after(0.0)) as served:
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=web.url, timeout=WAIT_SECONDS, trust_env=False, verify=TLS
    ) as client:
        yield client


class StreamEvent:
    """One event of a stream."""

    def __init__(self, event: Any) -> None:
        self.name: str = event.event
        self.id: str = event.id
        self.data: dict[str, Any] = orjson.loads(event.data)

    def __repr__(self) -> str:
        return f"{self.name} {self.id} {self.data}"


async def reported(
    http: httpx2.AsyncClient, path: str, last_id: str = ""
) -> AsyncGenerator[StreamEvent, None]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with http.sse(path, headers=headers) as source:
        assert source.response.status_code == 200
        assert source.response.headers["content-type"].startswith("text/event-stream")
        async for event in source:
            if event.data:
                yield StreamEvent(event)


# -- health and metrics ----------------------------------------------------------------------------------------------


async def test_server_says_that_it_is_alive_and_over_which_broker(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    web.broker = BrokerHealth(connected=False, transport="rabbitmq", host="rabbit.example:5672")
    answer = await http.get("/healthz")
    document = {"status": "ok", "broker": "rabbitmq", "broker_host": "rabbit.example:5672"}
    assert (answer.status_code, answer.json()) == (200, document)


@pytest.mark.parametrize(
    ("health", "status", "missing"),
    [
        pytest.param(BrokerHealth(connected=True), 200, {}, id="ready"),
        pytest.param(
            BrokerHealth(connected=False, detail="connection refused"),
            503,
            {"broker": "connection refused"},
            id="no broker",
        ),
        pytest.param(
            BrokerHealth(connected=True, blocked="low on disk"),
            503,
            {"broker": "blocked: low on disk"},
            id="blocked broker",
        ),
    ],
)
async def test_readiness_names_what_is_missing(
    web: WebServer, http: httpx2.AsyncClient, health: BrokerHealth, status: int, missing: dict[str, str]
) -> None:
    web.broker = health
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (status, missing)


async def test_degraded_broker_is_a_notice_and_not_ready_only_where_durability_is_required(
    web: WebServer, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    web.broker = BrokerHealth(connected=True, degraded="not durable: set appendfsync always")
    notice = {"broker": "degraded: not durable: set appendfsync always"}
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (200, {})
    assert answer.json()["notices"].items() >= notice.items()
    async with serve_web(tmp_path / "strict", require_durable=True) as strict:
        strict.broker = web.broker
        answer = await http.get(f"{strict.url}/readyz")
        assert (answer.status_code, answer.json()["missing"]) == (503, notice)


async def test_store_that_does_not_answer_is_reported_everywhere(
    web: WebServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("store.sqlite", "disk I/O error")

    monkeypatch.setattr(web.store, "counts", unavailable)
    monkeypatch.setattr(web.store, "runs", unavailable)
    ready = await http.get("/readyz")
    assert ready.status_code == 503
    assert "disk I/O error" in ready.json()["missing"]["store"]
    api = await http.get("/api/v1/runs")
    assert (api.status_code, api.json()["error"]["code"]) == (503, "unavailable")
    page = await http.get("/")
    assert page.status_code == 503
    assert "disk I/O error" in page.text
    assert (await http.get("/metrics")).status_code == 200
    assert (await http.get("/healthz")).status_code == 200


async def test_metrics_show_the_store_as_it_is_now(web: WebServer, http: httpx2.AsyncClient) -> None:
    await web.plan(spec("one"), spec("two", runs_on="illumos"), spec("three", needs=["one"]))
    web.metrics.requests_admitted(3)
    web.metrics.attempt_finished("linux", FAILED, 2.0)
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=1.0.0")
    lines = answer.text.splitlines()
    assert 'solstice_jobs{label="linux",state="waiting"} 1.0' in lines
    assert 'solstice_jobs{label="linux",state="blocked"} 1.0' in lines
    assert 'solstice_jobs{label="illumos",state="waiting"} 1.0' in lines
    assert 'solstice_requests_total{priority="default",reason="",verdict="admitted"} 3.0' in lines
    assert 'solstice_attempts_finished_total{reason="step_failed",state="failed"} 1.0' in lines
    assert "solstice_broker_connected 1.0" in lines
    assert "solstice_broker_blocked 0.0" in lines
    for metric in web.metrics.declared():
        assert f"# TYPE {metric.name} {metric.type}" in lines
    await web.store.cancel_run((await web.store.runs(limit=1)).runs[0].run_id)
    assert "solstice_jobs{" not in (await http.get("/metrics")).text


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_runs_come_newest_first_in_pages(web: WebServer, http: httpx2.AsyncClient) -> None:
    runs = [await web.admit() for _ in range(5)]
    first = (await http.get("/api/v1/runs", params={"limit": 3})).json()
    rest = (await http.get("/api/v1/runs", params={"limit": 3, "after": first["next"]})).json()
    assert [run["run_id"] for run in first["runs"] + rest["runs"]] == [run.run_id for run in reversed(runs)]
    assert rest["next"] is None


async def test_runs_are_filtered_by_repository_and_state(web: WebServer, http: httpx2.AsyncClient) -> None:
    other = await web.admit(repo_full_name="harbour/keeper")
    await web.plan(spec())
    by_repository = (await http.get("/api/v1/runs", params={"repository": "harbour/keeper"})).json()["runs"]
    by_state = (await http.get("/api/v1/runs", params={"state": "planning"})).json()["runs"]
    assert [run["run_id"] for run in by_repository] == [other.run_id]
    assert [run["run_id"] for run in by_state] == [other.run_id]


async def test_page_of_a_request_leads_to_its_run(web: WebServer, http: httpx2.AsyncClient) -> None:
    run = await web.admit()
    page = await http.get(f"/requests/{run.request_id}")
    assert (page.status_code, page.headers["location"]) == (303, f"/runs/{run.run_id}")
    assert (await http.get("/requests/nothing")).status_code == 404


async def test_run_has_the_fields_of_its_view(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running(spec("lint"), spec("test", needs=["lint"]))
    job = await web.store.job(key.job_id)
    assert job is not None
    run = (await http.get(f"/api/v1/runs/{job.run_id}")).json()
    assert (run["state"], run["repo_full_name"], run["finished_at"]) == (
        "running",
        "harbour/lighthouse",
        None,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", run["created_at"])
    assert [(each["name"], each["state"], each["needs"]) for each in run["jobs"]] == [
        ("lint", "running", []),
        ("test", "blocked", ["lint"]),
    ]
    assert (await http.get(f"/api/v1/requests/{run['request_id']}")).json() == run
    jobs = (await http.get("/api/v1/jobs", params={"run_id": job.run_id, "state": "running"})).json()["jobs"]
    assert jobs == [run["jobs"][0]]
    assert len((await http.get("/api/v1/jobs", params={"limit": 1})).json()["jobs"]) == 1


async def test_job_has_its_attempts(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.finish(key, FAILED)
    job = (await http.get(f"/api/v1/jobs/{key.job_id}")).json()
    assert (job["state"], job["reason"], job["exit_code"], job["attempt"]) == ("failed", "step_failed", 3, 1)
    assert [(each["number"], each["state"], each["worker_id"]) for each in job["attempts"]] == [
        (1, "failed", WORKER)
    ]


async def test_log_pages_decode_characters_that_were_cut(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    sun = "🌞".encode()
    await web.prints(key, b"a" + sun[:1], sun[1:2], sun[2:3], sun[3:] + b"b", b"\xff", sun[:2])
    path = f"/api/v1/jobs/{key.job_id}/log"
    whole = (await http.get(path)).json()
    assert (whole["attempt"], whole["state"]) == (1, "open")
    assert [chunk["text"] for chunk in whole["chunks"]] == ["a", "", "", "🌞b", "�", ""]
    for after in range(1, 6):
        page = (await http.get(path, params={"after": after, "limit": 2})).json()
        assert page["chunks"] == whole["chunks"][after : after + 2]
    await web.finish(key)
    closed = (await http.get(path, params={"after": 4})).json()
    assert closed["state"] == "closed"
    assert [chunk["text"] for chunk in closed["chunks"]] == ["�", "�"]


async def test_log_text_is_raw_or_plain(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    pieces = [
        b"\x1b[31mred\x1b[0m\n",
        b"10%\r",
        b"\x1b[K100%\n",
        "gr\u00fc".encode()[:3],
        "gr\u00fc".encode()[3:] + b"n",
    ]
    await web.prints(key, *pieces)
    path = f"/api/v1/jobs/{key.job_id}/log.txt"
    raw = await http.get(path)
    assert (raw.content, raw.headers["content-type"]) == (b"".join(pieces), "text/plain; charset=utf-8")
    plain = await http.get(path, params={"plain": 1})
    assert plain.text == "red\n100%\ngrün"


async def test_long_log_text_is_whole(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    pieces = [f"line {n}\n" * 100 for n in range(300)]
    await web.prints(key, *pieces)
    for parameters in ({}, {"plain": "1"}):
        assert (await http.get(f"/api/v1/jobs/{key.job_id}/log.txt", params=parameters)).text == "".join(
            pieces
        )


UNKNOWN_ID = "0190a5b2-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", f"/api/v1/runs/{UNKNOWN_ID}", 404, "not_found", id="run"),
        pytest.param("GET", f"/api/v1/runs/{UNKNOWN_ID}/events", 404, "not_found", id="run events"),
        pytest.param("GET", f"/api/v1/requests/{UNKNOWN_ID}", 404, "not_found", id="request"),
        pytest.param("GET", f"/api/v1/jobs/{UNKNOWN_ID}", 404, "not_found", id="job"),
        pytest.param("GET", f"/api/v1/jobs/{UNKNOWN_ID}/log", 404, "not_found", id="log"),
        pytest.param("GET", f"/api/v1/jobs/{UNKNOWN_ID}/log.txt", 404, "not_found", id="log text"),
        pytest.param("GET", f"/api/v1/jobs/{UNKNOWN_ID}/log/events", 404, "not_found", id="log events"),
        pytest.param("POST", f"/api/v1/jobs/{UNKNOWN_ID}/cancel", 404, "not_found", id="cancel job"),
        pytest.param("POST", f"/api/v1/runs/{UNKNOWN_ID}/cancel", 404, "not_found", id="cancel run"),
        pytest.param("POST", f"/api/v1/runs/{UNKNOWN_ID}/approve", 404, "not_found", id="approve"),
        pytest.param("POST", f"/api/v1/runs/{UNKNOWN_ID}/rerun", 404, "not_found", id="rerun"),
        pytest.param("GET", "/api/v1/nothing", 404, "not_found", id="no such route"),
        pytest.param("GET", f"/api/v1/runs/{UNKNOWN_ID}/rerun", 405, "method_not_allowed", id="wrong method"),
        pytest.param("GET", "/api/v1/runs?limit=0", 400, "invalid_parameter", id="limit too small"),
        pytest.param("GET", "/api/v1/runs?limit=201", 400, "invalid_parameter", id="limit too large"),
        pytest.param("GET", "/api/v1/jobs?limit=ten", 400, "invalid_parameter", id="limit no number"),
        pytest.param("GET", "/api/v1/runs?state=asleep", 400, "invalid_parameter", id="run state"),
        pytest.param("GET", "/api/v1/jobs?state=planning", 400, "invalid_parameter", id="job state"),
    ],
)
async def test_errors_have_a_code_and_a_sentence(
    http: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"].endswith(".")


@pytest.mark.parametrize(
    ("tail", "status"),
    [
        ("log?attempt=2", 404),
        ("log?attempt=0", 400),
        ("log?after=-1", 400),
        ("log.txt?attempt=2", 404),
        ("log/events?after=1.x", 400),
        ("log/events?attempt=1&after=2.1", 400),
    ],
)
async def test_places_in_a_log_are_checked(
    web: WebServer, http: httpx2.AsyncClient, tail: str, status: int
) -> None:
    key = await web.running()
    assert (await http.get(f"/api/v1/jobs/{key.job_id}/{tail}")).status_code == status


async def test_bug_is_reported_without_its_secrets(
    web: WebServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("s3cret")

    monkeypatch.setattr(web.store, "runs", broken)
    for path in ("/api/v1/runs", "/"):
        answer = await http.get(path)
        assert answer.status_code == 500
        assert "s3cret" not in answer.text
        assert answer.headers["content-security-policy"] == SECURITY_HEADERS["Content-Security-Policy"]


# -- steering --------------------------------------------------------------------------------------------------------


async def test_waiting_job_is_cancelled_at_once(web: WebServer, http: httpx2.AsyncClient) -> None:
    _, ids = await web.plan(spec())
    answer = await http.post(f"/api/v1/jobs/{ids['build']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")


async def test_cancel_of_a_run_reaches_who_holds_its_job(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    job = await web.store.job(key.job_id)
    assert job is not None
    answer = await http.post(f"/api/v1/runs/{job.run_id}/cancel")
    assert (answer.status_code, answer.json()["jobs"][0]["state"]) == (202, "running")
    assert (await web.store.renew(WORKER, [key])).cancelled == {key}


async def test_approved_run_goes_on(web: WebServer, http: httpx2.AsyncClient) -> None:
    run, _ = await web.plan(spec(), needs_approval=True)
    before = (await http.get(f"/api/v1/runs/{run.run_id}")).json()
    answer = await http.post(f"/api/v1/runs/{run.run_id}/approve")
    assert [job["state"] for job in before["jobs"]] == ["approval"]
    assert (answer.status_code, [job["state"] for job in answer.json()["jobs"]]) == (200, ["waiting"])


async def test_rerun_is_a_new_run_of_the_same_commit(web: WebServer, http: httpx2.AsyncClient) -> None:
    run = await web.admit()
    answer = await http.post(f"/api/v1/runs/{run.run_id}/rerun")
    new = answer.json()
    assert answer.status_code == 201
    assert new["run_id"] != run.run_id
    assert (new["rerun_of"], new["commit_sha"], new["state"]) == (run.run_id, run.commit_sha, "planning")


# -- streams ---------------------------------------------------------------------------------------------------------


async def test_chunks_say_whether_they_are_marks(web: WebServer, http: httpx2.AsyncClient) -> None:
    _, ids = await web.plan(spec())
    key = await web.claim(ids["build"])
    await web.prints(key, "$ test\n")
    await web.prints(key, "$ test\n", kind=ChunkKind.MARK)
    await web.finish(key)
    page = (await http.get(f"/api/v1/jobs/{key.job_id}/log")).json()
    assert [(each["kind"], each["text"]) for each in page["chunks"]] == [
        ("output", "$ test\n"),
        ("mark", "$ test\n"),
    ]
    async with aclosing(reported(http, f"/api/v1/jobs/{key.job_id}/log/events?after=1.0")) as events:
        assert [(await anext(events)).data["kind"] for _ in page["chunks"]] == ["output", "mark"]


async def test_log_is_reported_as_it_is_written(web: WebServer, http: httpx2.AsyncClient) -> None:
    _, ids = await web.plan(spec())
    job_id = ids["build"]
    async with aclosing(reported(http, f"/api/v1/jobs/{job_id}/log/events")) as events:
        await_first = asyncio.ensure_future(anext(events))
        await wait_until(lambda: len(web.streams) == 1)
        key = await web.claim(job_id)
        await web.prints(key, "one\n", b"\xc3")
        first = await await_first
        assert (first.name, first.id, first.data["sequence"], first.data["text"]) == (
            "chunk",
            "1.1",
            1,
            "one\n",
        )
        assert (await anext(events)).data["text"] == ""
        await web.prints(key, b"\xa9\n")
        assert (await anext(events)).data["text"] == "é\n"
        await web.finish(key, FAILED)
        last = await anext(events)
        assert (last.name, last.data) == (
            "end",
            {"state": "failed", "reason": "step_failed", "exit_code": 3},
        )
        assert [event async for event in events] == []


async def test_stream_resumes_where_the_client_was(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.prints(key, "one", b"\xc3", b"\xa9", "four")
    await web.finish(key)
    path = f"/api/v1/jobs/{key.job_id}/log/events"
    for last_id, query in (("1.2", ""), ("", "?after=1.2"), ("", "?after=2"), ("1.2", "?after=0.0")):
        events = [event async for event in reported(http, path + query, last_id)]
        assert [(event.id, event.data.get("text")) for event in events[:-1]] == [
            ("1.3", "é"),
            ("1.4", "four"),
        ]
        assert events[-1].name == "end"


async def test_stream_follows_to_the_next_attempt(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.prints(key, "first", b"\xc3")
    async with aclosing(reported(http, f"/api/v1/jobs/{key.job_id}/log/events")) as events:
        assert [(await anext(events)).id for _ in range(2)] == ["1.1", "1.2"]
        await web.finish(key, LOST)
        await web.store.rescue()
        again = await web.claim(key.job_id)
        await web.prints(again, "second")
        new, chunk = await anext(events), await anext(events)
        assert (new.name, new.data, new.id) == ("attempt", {"attempt": 2}, "2.0")
        assert (chunk.id, chunk.data["text"]) == ("2.1", "second")
        await web.finish(again)
        assert (await anext(events)).data["state"] == "succeeded"


async def test_stream_of_one_attempt_keeps_to_it(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.prints(key, "first")
    await web.finish(key, LOST)
    await web.store.rescue()
    await web.prints(await web.claim(key.job_id), "second")
    events = [event async for event in reported(http, f"/api/v1/jobs/{key.job_id}/log/events?attempt=1")]
    assert [event.data.get("text") for event in events] == ["first", None]
    assert events[-1].data["reason"] == "checkout_failed"
    page = (await http.get(f"/api/v1/jobs/{key.job_id}/log", params={"attempt": 1})).json()
    assert (page["state"], [chunk["text"] for chunk in page["chunks"]]) == ("closed", ["first"])


async def test_job_that_never_ran_ends_its_stream(web: WebServer, http: httpx2.AsyncClient) -> None:
    _, ids = await web.plan(spec())
    await web.store.cancel_job(ids["build"])
    events = [event async for event in reported(http, f"/api/v1/jobs/{ids['build']}/log/events")]
    assert [(event.name, event.data["state"]) for event in events] == [("end", "cancelled")]


async def test_run_is_reported_at_every_change_until_its_end(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    run, ids = await web.plan(spec())
    async with aclosing(reported(http, f"/api/v1/runs/{run.run_id}/events")) as events:
        assert (await anext(events)).data["jobs"][0]["state"] == "waiting"
        key = await web.claim(ids["build"])
        assert (await anext(events)).data["state"] == "running"
        await web.finish(key)
        last = await anext(events)
        assert (last.name, last.data["state"], last.data["jobs"][0]["state"]) == (
            "run",
            "succeeded",
            "succeeded",
        )
        assert [event async for event in events] == []


async def test_our_own_client_follows_a_run_to_its_end(web: WebServer) -> None:
    run, ids = await web.plan(spec("lint"), spec("test", needs=["lint"]))
    written: list[str] = []
    async with OrchestratorClient.open(web.url) as api, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow_run(api, run.run_id, written.append))
        await wait_until(lambda: len(web.streams) == 1)
        for name in ("lint", "test"):
            key = await web.claim(ids[name])
            await web.prints(key, f"{name} says hello\n")
            await web.finish(key)
    assert following.result()["state"] == "succeeded"
    assert sorted(written) == ["lint |   lint says hello\n", "test |   test says hello\n"]


async def test_a_client_of_the_list_gets_its_changes(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    async with aclosing(reported(http, "/api/v1/events")) as events:
        changed = asyncio.ensure_future(anext(events))
        await wait_until(lambda: len(web.streams) == 1)
        await web.prints(key, "a log is no change of the list")
        await web.finish(key)
        assert (await changed).name == "changed"


async def test_silent_stream_shows_signs_of_life(
    web: WebServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.05)
    key = await web.running()
    async with http.stream("GET", f"/api/v1/jobs/{key.job_id}/log/events") as response:
        async for text in response.aiter_lines():
            if text == ": still here":
                break
        else:
            pytest.fail("the stream ended")


@pytest.mark.parametrize("path", ["log/events", "log.txt"])
async def test_client_that_goes_away_leaves_nothing_behind(
    web: WebServer, http: httpx2.AsyncClient, path: str
) -> None:
    key = await web.running()
    await web.prints(key, "x")
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        async with http.stream("GET", f"/api/v1/jobs/{key.job_id}/{path}") as response:
            async for _piece in response.aiter_raw():
                break
    await wait_until(lambda: len(web.streams) == 0)
    await http.aclose()
    await wait_until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    async with httpx2.AsyncClient(timeout=WAIT_SECONDS, trust_env=False) as client:
        async with serve_web(tmp_path) as served:
            key = await served.running()
            await served.prints(key, "x")
            events = reported(client, f"{served.url}/api/v1/jobs/{key.job_id}/log/events")
            await anext(events)
            rest = asyncio.ensure_future(all_of(events))
        assert await rest == []


async def all_of(events: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    return [event async for event in events]


async def test_head_of_a_stream_is_only_a_head(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    for path in (f"/api/v1/jobs/{key.job_id}/log/events", "/api/v1/events"):
        answer = await http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_rows_of_a_resumed_stream_are_those_of_the_page(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    key = await web.running()
    await web.prints(key, "\x1b[31mone\ntw", "o\nthree 10%", "\rthree 99%\n", "<four>")
    await web.prints(key, "six", skip=1)
    await web.finish(key)
    path = f"/jobs/{key.job_id}/log/html-events"

    async def rows_after(position: str) -> list[str]:
        shown: dict[int, str] = {}
        async for event in reported(http, path, position):
            if event.name == "rows":
                first = event.data["first"]
                shown = {index: row for index, row in shown.items() if index < first}
                shown |= {index: row["html"] for index, row in enumerate(event.data["rows"], first)}
        return list(shown.values())

    red = '<span class="f1">{}</span>'.format
    whole = [red("one"), red("two"), red("three 99%"), red("&lt;four&gt;")]
    whole += ["Output is missing here: pieces 5 to 5 were never stored.", red("six")]
    assert await rows_after("") == whole
    assert await rows_after("1.3") == whole[3:]
    page = (await http.get(f"/jobs/{key.job_id}")).text
    assert re.findall(r'<span class="t">(.*?)</span></div>', page) == whole


async def test_of_very_many_rows_only_the_newest_are_sent_and_each_is_counted(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    key = await web.running()
    await web.prints(key, *(b"\n" * 65_536 for _ in range(4)), "the end\n")
    await web.finish(key)
    async for event in reported(http, f"/jobs/{key.job_id}/log/html-events"):
        if event.name == "rows":
            assert len(event.data["rows"]) <= LIVE_ROWS
            last = event.data["first"] + len(event.data["rows"]), event.data["rows"][-1]
    assert last == (4 * 65_536 + 1, {"n": 4 * 65_536 + 1, "html": "the end"})
    page = (await http.get(f"/jobs/{key.job_id}")).text
    assert f"The first <span>{4 * 65_536 + 1 - MAX_ROWS}</span> lines" in page


# -- the guard -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("ci.harbour.example", 401),  # ours, and not this machine: a token is needed
        ("rebound.example", 421),
        ("127.0.0.1.rebound.example", 421),
        ("192.168.1.4", 421),
        ("localhost@rebound.example", 421),
        ("[::1", 421),
    ],
)
async def test_only_our_own_names_are_answered(tmp_path: Path, host: str, status: int) -> None:
    async with (
        serve_web(tmp_path, public_url="https://ci.harbour.example/") as served,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        answer = await client.get(f"{served.url}/api/v1/runs", headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize(
    ("host", "status"),
    [("10.1.2.3:8081", 200), ("[fd00::2]", 200), ("10.1.2.3.rebound.example", 421), ("", 421)],
)
async def test_probes_may_ask_by_address(tmp_path: Path, path: str, host: str, status: int) -> None:
    async with serve_web(tmp_path) as served, httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(served.url + path, headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 201, id="a program"),
        pytest.param({"Origin": "SELF", "Sec-Fetch-Site": "same-origin"}, 201, id="our page"),
        pytest.param({"Origin": "https://ci.harbour.example"}, 201, id="our page behind a proxy"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="other site"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, 403, id="other port of this machine"),
        pytest.param({"Origin": "null"}, 403, id="opaque origin"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="cross-site without origin"),
    ],
)
async def test_only_our_own_pages_may_post(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with (
        serve_web(tmp_path, public_url="https://ci.harbour.example") as served,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        run = await served.admit()
        sent = {name: value.replace("SELF", served.url) for name, value in headers.items()}
        answer = await client.post(f"{served.url}/api/v1/runs/{run.run_id}/rerun", headers=sent)
        assert len((await served.store.runs(limit=10)).runs) == (2 if status == 201 else 1)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/runs/x", "/static/app.js", "/static/../app.py", "/api/v1/runs", "/healthz"]
)
async def test_every_answer_carries_the_security_headers(http: httpx2.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("path", ["/", "/runs/{run}", "/jobs/{job}"])
async def test_pages_hold_no_inline_script_or_style(
    web: WebServer, http: httpx2.AsyncClient, path: str
) -> None:
    key = await web.running(
        sender='"><script>alert(1)</script>', ref="refs/heads/<img src=x onerror=alert(1)>"
    )
    await web.prints(key, "<script>alert(1)</script>\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07")
    job = await web.store.job(key.job_id)
    assert job is not None
    page = (await http.get(path.format(run=job.run_id, job=job.job_id))).text
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/static/app.js">']
    assert not re.search(r"<[^>]+\s(on\w+|style)=", page)
    assert "javascript:" not in page


async def test_address_that_is_taken_is_a_plain_error(web: WebServer) -> None:
    port = int(web.url.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
        async with serving(lambda *_: None, web.streams, host="127.0.0.1", port=port):  # type: ignore[arg-type]  # never called
            pass
