"""Why a job waits, over HTTP: real store, real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ServiceRefused
from tests.servers.orchestrator_web import WORKER, WebServer, serve_web, spec
from tests.stores import worker_record


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as served:
        await served.store.register(worker_record(WORKER, name="quay"))
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=web.url, timeout=20, trust_env=False) as client:
        yield client


async def test_a_job_that_waits_is_explained(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running(spec("long", runs_on="illumos"), repo_full_name="harbour/buoy")
    run, ids = await web.plan(spec("short", runs_on="illumos"))
    answer = (await http.get(f"/api/v1/jobs/{ids['short']}/why")).json()
    why = answer.pop("why")
    assert answer == {
        "job_id": ids["short"],
        "run_id": run.run_id,
        "name": "short",
        "state": "waiting",
    }
    (holder,) = why.pop("holders")
    assert holder.pop("started_at").endswith("Z")
    assert holder.pop("run_id")
    assert holder == {
        "job_id": key.job_id,
        "name": "long",
        "repository": "harbour/buoy",
        "worker_id": WORKER,
    }
    assert why.pop("since").endswith("Z")
    assert why == {
        "reason": "slots_busy",
        "detail": "Others have the slot of illumos; it is the next.",
        "ahead": 0,
        "until": None,
        "resource": None,
        "expected_start": None,
    }


async def test_the_expected_start_is_a_range(web: WebServer, http: httpx2.AsyncClient) -> None:
    for _ in range(3):
        await web.finish(await web.running(spec(runs_on="illumos")))
    await web.running(spec("long", runs_on="illumos"))
    _, ids = await web.plan(spec("short", runs_on="illumos"))
    start = (await http.get(f"/api/v1/jobs/{ids['short']}/why")).json()["why"]["expected_start"]
    assert start["earliest"] <= start["latest"]
    assert start["latest"].endswith("Z")


async def test_what_runs_does_not_wait(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running()
    answer = (await http.get(f"/api/v1/jobs/{key.job_id}/why")).json()
    assert (answer["state"], answer["why"]) == ("running", None)


async def test_a_run_without_jobs_is_explained(web: WebServer, http: httpx2.AsyncClient) -> None:
    run = await web.admit()
    answer = (await http.get(f"/api/v1/runs/{run.run_id}/why")).json()
    assert (answer["run_id"], answer["state"]) == (run.run_id, "planning")
    assert answer["why"]["reason"] == "not_planned_yet"
    (task,) = await web.store.claim_planning(WORKER, 1)
    await web.store.planned(task, [spec()])
    assert (await http.get(f"/api/v1/runs/{run.run_id}/why")).json()["why"] is None


@pytest.mark.parametrize("path", ["/api/v1/jobs/nobody/why", "/api/v1/runs/nobody/why"])
async def test_what_is_not_there_is_404(http: httpx2.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_client_asks_for_both(web: WebServer) -> None:
    run, ids = await web.plan(spec(runs_on="plan9"))
    async with OrchestratorClient.open(web.url) as api:
        assert (await api.why_job(ids["build"]))["why"]["reason"] == "no_worker_for_label"
        assert (await api.why_run(run.run_id))["why"] is None
        with pytest.raises(ServiceRefused):
            await api.why_job(run.run_id)


async def test_the_page_of_a_job_says_why_it_waits_and_links_to_who_is_in_its_way(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    key = await web.running(spec("long", runs_on="illumos"))
    _, ids = await web.plan(spec("short", runs_on="illumos"))
    page = (await http.get(f"/jobs/{ids['short']}")).text
    assert "Others have the slot of illumos; it is the next." in page
    assert f'href="/jobs/{key.job_id}"' in page
    assert "data-waits" not in (await http.get(f"/jobs/{key.job_id}")).text


async def test_the_page_of_a_run_says_why_it_has_no_jobs_yet(
    web: WebServer, http: httpx2.AsyncClient
) -> None:
    run = await web.admit()
    assert "Its workflow has not been read yet." in (await http.get(f"/runs/{run.run_id}")).text
