"""API v1 over HTTP: pages of lists, parts of logs, gaps, and changes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.following import follow_job
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.stores import retries_after

FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="test")
UNKNOWN_ID = "0190a5b2-0000-7000-8000-000000000000"


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path, retries=retries_after(0.0)) as served:
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"{web.url}/api/v1", timeout=60, trust_env=False) as client:
        yield client


async def error_of(http: httpx2.AsyncClient, method: str, path: str, **parameters: Any) -> tuple[int, str]:
    answer = await http.request(method, path, params=parameters or None)
    error = answer.json()["error"]
    assert error["message"].endswith(".")
    return answer.status_code, error["code"]


# -- lists -----------------------------------------------------------------------------------------------------------


async def test_lists_are_filtered_by_all_that_is_asked(web: WebServer, http: httpx2.AsyncClient) -> None:
    run, ids = await web.plan(spec(), spec("port", runs_on="illumos"), ref="refs/heads/fog")
    await web.plan(spec())
    tag, _ = await web.plan(spec(), ref="refs/tags/v1", repo_full_name="harbour/keeper")
    for query, expected in (
        ({"branch": "fog"}, run),
        ({"branch": "refs/heads/fog"}, run),
        ({"branch": "refs/tags/v1"}, tag),
        ({"label": "illumos"}, run),
        ({"label": "linux", "branch": "fog", "state": "waiting", "priority": "default"}, run),
        ({"repository": "harbour/keeper", "branch": "fog"}, None),
    ):
        found = (await http.get("/runs", params=query)).json()
        assert [each["run_id"] for each in found["runs"]] == ([expected.run_id] if expected else [])
    jobs = (await http.get("/jobs", params={"branch": "fog", "label": "illumos"})).json()
    assert [each["job_id"] for each in jobs["jobs"]] == [ids["port"]]
    assert jobs["next"] is None


async def test_jobs_come_page_by_page(web: WebServer, http: httpx2.AsyncClient) -> None:
    names = [f"job-{number}" for number in range(5)]
    run, ids = await web.plan(*(spec(name) for name in names))
    for query, expected in (({"run_id": run.run_id}, names), ({"label": "linux"}, names[::-1])):
        seen: list[str] = []
        after: str | None = None
        while True:
            page = (
                await http.get("/jobs", params={"limit": 2, **query, **({"after": after} if after else {})})
            ).json()
            seen += [job["job_id"] for job in page["jobs"]]
            after = page["next"]
            if after is None:
                break
            await web.plan(spec("between", runs_on="illumos"))
        assert seen == [ids[name] for name in expected]


async def test_a_cursor_of_elsewhere_is_refused(web: WebServer, http: httpx2.AsyncClient) -> None:
    run, _ = await web.plan(spec("one"), spec("two"))
    await web.plan(spec())
    cursor = (await http.get("/runs", params={"limit": 1})).json()["next"]
    assert run.run_id not in cursor
    for path, query in (
        ("/runs", {"repository": "harbour/lighthouse"}),
        ("/jobs", {}),
        ("/jobs", {"run_id": run.run_id}),
    ):
        assert await error_of(http, "GET", path, after=cursor, **query) == (400, "invalid_cursor")
    for foreign in (run.run_id, "nonsense", "ünsinn", cursor[:-1], f"{cursor}A"):
        assert await error_of(http, "GET", "/runs", after=foreign) == (400, "invalid_cursor")
    assert (await http.get("/runs", params={"after": cursor, "limit": 9})).status_code == 200


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/runs", "branches=main"),
        ("/runs", "state=running&state=failed"),
        ("/runs", "priority=urgent"),
        ("/jobs", "state=planning"),
        ("/jobs", "limit=0"),
        ("/jobs", "limit=1.5"),
        ("/workers", "limit=5"),
        ("/events", "x=1"),
        (f"/runs/{UNKNOWN_ID}", "x=1"),
        (f"/jobs/{UNKNOWN_ID}/log", "after=2147483648"),
    ],
)
async def test_a_parameter_that_is_not_understood_is_refused(
    http: httpx2.AsyncClient, path: str, query: str
) -> None:
    assert await error_of(http, "GET", f"{path}?{query}") == (400, "invalid_parameter")


# -- what people change ------------------------------------------------------------------------------------------------


async def test_attempts_are_listed(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.finish(key, FAILED)
    attempts = (await http.get(f"/jobs/{key.job_id}/attempts")).json()
    job = (await http.get(f"/jobs/{key.job_id}")).json()
    assert attempts == {"attempts": job["attempts"]}
    assert [attempt["state"] for attempt in attempts["attempts"]] == ["failed"]
    assert await error_of(http, "GET", f"/jobs/{UNKNOWN_ID}/attempts") == (404, "not_found")


async def test_a_job_changes_its_class_until_it_has_ended(web: WebServer, http: httpx2.AsyncClient) -> None:
    _, ids = await web.plan(spec())
    path = f"/jobs/{ids['build']}/priority"
    changed = await http.post(path, params={"priority": "high"})
    assert (changed.status_code, changed.json()["priority"]) == (200, "high")
    assert await error_of(http, "POST", path) == (400, "invalid_parameter")
    assert await error_of(http, "POST", path, priority="urgent") == (400, "invalid_parameter")
    assert await error_of(http, "POST", f"/jobs/{UNKNOWN_ID}/priority", priority="low") == (404, "not_found")
    await web.store.cancel_job(ids["build"])
    assert await error_of(http, "POST", path, priority="low") == (409, "has_ended")


async def test_what_failed_is_run_again_once_it_is_known(web: WebServer, http: httpx2.AsyncClient) -> None:
    run, ids = await web.plan(spec("lint"), spec("build", runs_on="illumos"))
    path = f"/runs/{run.run_id}/rerun"
    await web.finish(await web.claim(ids["build"]), FAILED)
    assert await error_of(http, "POST", path, jobs="failed") == (409, "not_ended")
    await web.finish(await web.claim(ids["lint"]))
    again = await http.post(path, params={"jobs": "failed"})
    assert (again.status_code, again.json()["rerun_of"]) == (201, run.run_id)
    (task,) = await web.store.claim_planning("worker-1", 9)
    assert await web.store.planned(task, (spec("lint"), spec("build", runs_on="illumos")))
    new = (await http.get(f"/runs/{again.json()['run_id']}")).json()
    assert [job["name"] for job in new["jobs"]] == ["build"]
    await web.finish(await web.claim(new["jobs"][0]["job_id"]))
    assert await error_of(http, "POST", f"/runs/{new['run_id']}/rerun", jobs="failed") == (
        409,
        "nothing_failed",
    )
    assert await error_of(http, "POST", path, jobs="some") == (400, "invalid_parameter")


# -- logs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte_range", "status", "part", "content_range"),
    [
        ("bytes=0-3", 206, slice(0, 4), "bytes 0-3/12"),
        ("bytes=3-5", 206, slice(3, 6), "bytes 3-5/12"),
        ("bytes=6-", 206, slice(6, 12), "bytes 6-11/12"),
        ("bytes=-5", 206, slice(7, 12), "bytes 7-11/12"),
        ("bytes=-99", 206, slice(0, 12), "bytes 0-11/12"),
        ("bytes=11-99", 206, slice(11, 12), "bytes 11-11/12"),
        ("bytes=12-", 416, None, "bytes */12"),
        ("bytes=-0", 200, slice(0, 12), None),
        ("bytes=5-3", 200, slice(0, 12), None),
        ("bytes=0-1,3-4", 200, slice(0, 12), None),
    ],
)
async def test_bytes_of_a_log_are_given(
    web: WebServer,
    http: httpx2.AsyncClient,
    byte_range: str,
    status: int,
    part: slice | None,
    content_range: str | None,
) -> None:
    key = await web.running()
    whole = b"four\n\xff\x00end.\n"
    await web.prints(key, whole[:5], whole[5:7], whole[7:])
    path = f"/jobs/{key.job_id}/log.txt"
    open_log = await http.get(path, headers={"Range": byte_range})
    # How long it will be is not known yet.
    so_far = content_range.replace("/12", "/*") if content_range and status == 206 else content_range
    assert open_log.headers.get("content-range") == so_far
    await web.finish(key)
    answer = await http.get(path, headers={"Range": byte_range})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range)
    if part is not None:
        assert open_log.content == answer.content == whole[part]
    else:
        assert answer.json()["error"]["code"] == "no_such_range"
    ignored = await http.get(path, headers={"Range": byte_range, "If-Range": '"never given"'})
    assert (ignored.status_code, ignored.content) == (200, whole)


async def test_a_log_says_what_is_missing(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    await web.prints(key, "one\n")
    await web.prints(key, "four\n", "five\n", skip=2)
    await web.prints(key, "seven\n", skip=1)
    path = f"/jobs/{key.job_id}/log"
    page = (await http.get(path)).json()
    assert [chunk["sequence"] for chunk in page["chunks"]] == [1, 4, 5, 7]
    assert page["missing"] == [{"first": 2, "last": 3}, {"first": 6, "last": 6}]
    part = (await http.get(path, params={"after": 2, "limit": 2})).json()
    assert [chunk["sequence"] for chunk in part["chunks"]] == [4, 5]
    assert part["missing"] == [{"first": 3, "last": 3}]


async def test_a_stream_says_what_is_missing_and_goes_on_there(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    key = await web.running()
    await web.prints(key, "one\n")
    await web.prints(key, "four\n", "five\n", skip=2)
    await web.finish(key)

    async def reported(last_id: str = "") -> list[tuple[str, dict[str, Any]]]:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with http.sse(f"/jobs/{key.job_id}/log/events", headers=headers) as source:
            return [(event.event, orjson.loads(event.data)) async for event in source if event.data]

    events = await reported()
    assert [name for name, _ in events] == ["chunk", "gap", "chunk", "chunk", "end"]
    assert events[1][1] == {"first": 2, "last": 3}
    # A client that reconnects in a gap gets the gap again, and only what it missed.
    assert await reported("1.1") == events[1:]
    assert await reported("1.4") == events[3:]
    written: list[str] = []
    async with OrchestratorClient.open(web.url) as api:
        await follow_job(api, key.job_id, written.append)
    assert "".join(written) == (
        "  one\n! Output is missing here: pieces 2 to 3 were never stored.\n  four\n  five\n"
    )


async def test_a_page_of_large_chunks_is_short(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    piece = b"x" * 65_536
    for _ in range(5):
        await web.prints(key, *[piece] * 8)
    await web.finish(key)
    seen, after = list[int](), 0
    while True:
        answer = await http.get(f"/jobs/{key.job_id}/log", params={"after": after, "limit": 1000})
        assert len(answer.content) < 2_500_000
        page = answer.json()
        seen += [chunk["sequence"] for chunk in page["chunks"]]
        if page["state"] == "closed":
            break
        after = seen[-1]
    assert seen == list(range(1, 41))
