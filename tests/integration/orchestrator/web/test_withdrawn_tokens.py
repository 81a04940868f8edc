"""Event streams and downloads end when their caller loses the right to them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope
from solstice_orchestrator.web.formats import sse
from tests.servers.orchestrator_web import WebServer, serve_web
from tests.servers.tokens import bearer, make_token

LOG_EVENTS = "/api/v1/jobs/{job_id}/log/events"
STREAMS = [
    LOG_EVENTS,
    "/jobs/{job_id}/log/html-events",
    "/api/v1/runs/{run_id}/events",
    "/api/v1/events",
    "/api/v1/schedules/events",
    "/api/v1/workers/events",
]


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.2)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as web:
        yield web


class OpenResponse:
    """A response that is read in the background."""

    def __init__(self) -> None:
        self.text, self.ended, self.arrived = "", asyncio.Event(), asyncio.Event()

    async def read(self, response: httpx2.Response) -> None:
        async for piece in response.aiter_text():
            self.text += piece
            self.arrived.set()
        self.ended.set()


@asynccontextmanager
async def opened(web: WebServer, path: str, headers: dict[str, str]) -> AsyncIterator[OpenResponse]:
    async with (
        httpx2.AsyncClient(base_url=web.url, timeout=30, trust_env=False) as http,
        http.stream("GET", path, headers=headers) as response,
        asyncio.TaskGroup() as tasks,
    ):
        assert response.status_code == 200
        opened = OpenResponse()
        reading = tasks.create_task(opened.read(response))
        await asyncio.wait_for(opened.arrived.wait(), 10)
        yield opened
        reading.cancel()


def test_every_stream_is_named_here() -> None:
    web = Path("services/orchestrator/solstice_orchestrator/web")
    routes = {
        found
        for path in web.rglob("*.py")
        for found in re.findall(r'Route\("([^"]*events)"', path.read_text())
    }
    assert routes == {path.removeprefix("/api/v1") for path in STREAMS}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_with_its_token(web: WebServer, path: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    make_token(tokens, "another", TokenScope.READ)
    reader = make_token(tokens, "reader", TokenScope.READ)
    key = await web.running()
    job = await web.store.job(key.job_id)
    assert job is not None
    path = path.format(job_id=key.job_id, run_id=job.run_id)
    async with opened(web, path, bearer(reader)) as stream:
        await asyncio.sleep(0.5)  # what was there before has arrived
        change(tokens, lambda stored: [token for token in stored if token.name != "reader"])
        so_far = stream.text
        await web.prints(key, "for those who may read it\n")
        await web.finish(key)
        await web.admit()
        await asyncio.wait_for(stream.ended.wait(), 5)
        assert stream.text == so_far


def _revoke(tokens: Path) -> None:
    change(tokens, lambda _: [])


def _expire(tokens: Path) -> None:
    change(tokens, lambda stored: [replace(each, expires_at=1.0) for each in stored])


def _take_scope(tokens: Path) -> None:
    change(tokens, lambda stored: [replace(each, scopes=frozenset({TokenScope.OPERATE})) for each in stored])


@pytest.mark.parametrize(
    "withdraw", [_revoke, _expire, _take_scope], ids=lambda each: each.__name__.strip("_")
)
async def test_a_stream_ends_however_its_right_was_lost(
    web: WebServer, withdraw: Callable[[Path], None], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    reader = make_token(tokens, "reader", TokenScope.READ)
    key = await web.running()
    async with opened(web, LOG_EVENTS.format(job_id=key.job_id), bearer(reader)) as stream:
        withdraw(tokens)
        await asyncio.wait_for(stream.ended.wait(), 5)


async def test_a_stream_without_a_token_ends_when_the_first_is_made(web: WebServer, tmp_path: Path) -> None:
    key = await web.running()
    async with opened(web, LOG_EVENTS.format(job_id=key.job_id), {}) as stream:
        make_token(tmp_path / "tokens.json", "reader", TokenScope.READ)
        await web.prints(key, "for those who may read it\n")
        await asyncio.wait_for(stream.ended.wait(), 5)
        assert "may read" not in stream.text


async def test_a_stream_goes_on_while_other_tokens_come_and_go(web: WebServer, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    make_token(tokens, "another", TokenScope.READ)
    reader = make_token(tokens, "reader", TokenScope.READ)
    key = await web.running()
    async with opened(web, LOG_EVENTS.format(job_id=key.job_id), bearer(reader)) as stream:
        change(tokens, lambda stored: [token for token in stored if token.name == "reader"])
        await asyncio.sleep(0.5)
        await web.prints(key, "still here\n")
        await web.finish(key)
        await asyncio.wait_for(stream.ended.wait(), 5)
        assert "still here" in stream.text
        assert "event: end" in stream.text


async def test_a_download_of_a_log_ends_with_its_token(web: WebServer, tmp_path: Path) -> None:
    """The log exceeds all buffers, so most of it is still to be sent."""
    tokens = tmp_path / "tokens.json"
    reader = make_token(tokens, "reader", TokenScope.READ)
    key = await web.running()
    for _ in range(16):
        await web.prints(key, *["x" * 65536] * 16)
    async with (
        httpx2.AsyncClient(base_url=web.url, timeout=30, trust_env=False) as http,
        http.stream("GET", f"/api/v1/jobs/{key.job_id}/log.txt", headers=bearer(reader)) as response,
    ):
        pieces = response.aiter_raw()
        size = len(await anext(pieces))
        change(tokens, lambda _: [])
        with pytest.raises(httpx2.RemoteProtocolError):
            size += sum([len(piece) async for piece in pieces])
        assert size < 12 * 1024 * 1024
