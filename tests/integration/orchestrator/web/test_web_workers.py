"""Workers over HTTP: real store, real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import orjson
import pytest

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ServiceRefused
from solstice_orchestrator.scheduling.workers import PauseOrder
from tests.servers.orchestrator_web import WORKER, WebServer, serve_web, spec
from tests.stores import retries_after, worker_record


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path, retries=retries_after(0.0)) as served:
        await served.store.register(worker_record(WORKER, name="quay"))
        yield served


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=web.url, timeout=20, trust_env=False) as client:
        yield client


async def test_workers_are_listed_with_all_that_is_known(web: WebServer, http: httpx2.AsyncClient) -> None:
    key = await web.running(spec("test"))
    (worker,) = (await http.get("/api/v1/workers")).json()["workers"]
    (job,) = worker.pop("jobs")
    assert (job["job_id"], job["name"], job["runs_on"], job["attempt"]) == (key.job_id, "test", "linux", 1)
    assert worker.pop("started_at") <= worker.pop("seen_at")
    assert worker == {
        "worker_id": WORKER,
        "name": "quay",
        "host": "quay.example",
        "version": "1.2.3",
        "slots": {"linux": 4, "illumos": 1},
        "limit": 5,
        "presence": "alive",
        "state": "active",
        "quarantined_until": None,
        "failures_in_a_row": 0,
        "shrunk_to": None,
        "refuses": None,
        "refusal": "",
        "condition_at": None,
        "repositories_last": [],
        "others_alone_until": None,
    }
    assert (await http.get(f"/api/v1/workers/{WORKER}")).json()["worker_id"] == WORKER


@pytest.mark.parametrize(
    ("order", "state"),
    [("pause", "paused"), ("drain", "draining"), ("quarantine", "quarantined"), ("resume", "active")],
)
async def test_an_order_is_answered_with_how_the_worker_stands(
    web: WebServer, http: httpx2.AsyncClient, order: str, state: str
) -> None:
    answer = await http.post(f"/api/v1/workers/{WORKER}/{order}")
    assert (answer.status_code, answer.json()["state"]) == (202, state)


async def test_a_quarantine_lasts_as_long_as_asked(web: WebServer, http: httpx2.AsyncClient) -> None:
    answer = await http.post(f"/api/v1/workers/{WORKER}/quarantine", params={"seconds": 86400})
    worker = await web.store.worker(WORKER)
    assert worker is not None
    assert worker.quarantined_until is not None
    assert 86390 < worker.quarantined_until - worker.seen_at < 86400 + 60
    assert answer.json()["quarantined_until"].endswith("Z")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        pytest.param("/api/v1/workers/nobody/pause", 404, "not_found", id="unknown-worker"),
        pytest.param(f"/api/v1/workers/{WORKER}/promote", 404, "not_found", id="unknown-order"),
        pytest.param(
            f"/api/v1/workers/{WORKER}/quarantine?seconds=0", 400, "invalid_parameter", id="no-time"
        ),
        pytest.param(
            f"/api/v1/workers/{WORKER}/quarantine?seconds=99999999", 400, "invalid_parameter", id="too-long"
        ),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused(
    web: WebServer, http: httpx2.AsyncClient, path: str, status: int, code: str
) -> None:
    answer = await http.post(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (await http.get(f"/api/v1/workers/{WORKER}")).json()["state"] == "active"


async def test_a_drain_cannot_be_taken_back(web: WebServer, http: httpx2.AsyncClient) -> None:
    await http.post(f"/api/v1/workers/{WORKER}/drain")
    answer = await http.post(f"/api/v1/workers/{WORKER}/resume")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "is_draining")
    assert "start it again" in answer.json()["error"]["message"]


async def test_orders_are_only_given_by_post(web: WebServer, http: httpx2.AsyncClient) -> None:
    assert (await http.get(f"/api/v1/workers/{WORKER}/pause")).status_code == 405
    assert (await http.get("/api/v1/workers/nobody")).status_code == 404


async def test_the_client_says_the_same(web: WebServer) -> None:
    async with OrchestratorClient.open(web.url) as api:
        assert [worker["name"] for worker in await api.workers()] == ["quay"]
        assert (await api.steer_worker(WORKER, "quarantine", seconds=60))["state"] == "quarantined"
        with pytest.raises(ServiceRefused, match="no worker 'host:1:a b'"):
            await api.steer_worker("host:1:a b", "pause")


async def test_a_change_of_the_workers_is_reported(web: WebServer, http: httpx2.AsyncClient) -> None:
    async with http.sse("/api/v1/workers/events") as source:
        reported = aiter(source)
        await web.store.steer_worker(WORKER, PauseOrder())
        event = await anext(reported)
        while not event.data:
            event = await anext(reported)
        assert (event.event, orjson.loads(event.data)) == ("changed", {})


async def test_metrics_count_workers_by_what_they_do(web: WebServer, http: httpx2.AsyncClient) -> None:
    await web.store.register(worker_record("another"))
    await web.store.steer_worker("another", PauseOrder())
    text = (await http.get("/metrics")).text
    counted = {line for line in text.splitlines() if line.startswith("solstice_workers{")}
    assert counted == {
        'solstice_workers{state="active"} 1.0',
        'solstice_workers{state="paused"} 1.0',
        'solstice_workers{state="draining"} 0.0',
        'solstice_workers{state="quarantined"} 0.0',
        'solstice_workers{state="lost"} 0.0',
    }


async def test_a_button_does_it_and_shows_the_page_again(web: WebServer, http: httpx2.AsyncClient) -> None:
    answer = await http.post(f"/workers/{WORKER}/pause", headers={"Origin": web.url})
    assert (answer.status_code, answer.headers["location"]) == (303, "/workers")
    page = (await http.get("/workers")).text
    assert "Takes no jobs until it is resumed" in page
    refused = await http.post("/workers/nobody/pause")
    assert (refused.status_code, "no worker" in refused.text) == (404, True)
