"""The composition root in one process, and its command with wrong settings."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from solstice_common.errors import ConfigurationError
from solstice_orchestrator import daemon
from solstice_orchestrator.settings import OrchestratorSettings
from tests.polling import wait_until_true
from tests.servers.orchestrator import START, SharedFiles


@pytest.fixture
def settings(tmp_path: Path) -> OrchestratorSettings:
    return OrchestratorSettings(
        amqp_url=f"sqlite:///{tmp_path / 'broker.db'}",
        database_url=f"sqlite:///{tmp_path / 'store.db'}",
        workspaces=tmp_path / "workspaces",
        orchestrator_port=0,
        executor="scripted",
        governor="off",
    )


async def test_it_serves_until_it_is_asked_to_stop_and_leaves_nothing_behind(
    settings: OrchestratorSettings,
) -> None:
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    before = asyncio.all_tasks()
    running = asyncio.create_task(daemon.run(settings, stop, on_ready=urls.put_nowait))
    url = await asyncio.wait_for(urls.get(), 60)
    async with httpx2.AsyncClient() as client:

        async def is_ready() -> bool:
            return (await client.get(f"{url}/readyz")).status_code == 200

        await wait_until_true("it consumes", is_ready)
        answers = [(await client.get(f"{url}{path}")).status_code for path in ("/healthz", "/metrics")]
        assert answers == [200, 200]
        stop.set()
        await asyncio.wait_for(running, 60)
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"{url}/healthz")
    assert asyncio.all_tasks() == before


async def test_a_stop_before_the_start_takes_effect(settings: OrchestratorSettings) -> None:
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(daemon.run(settings, stop), 60)


async def test_a_taken_port_is_a_plain_error(settings: OrchestratorSettings) -> None:
    async with asyncio.timeout(60):
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            conflicting = settings.model_copy(update={"orchestrator_port": port})
            with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
                await daemon.run(conflicting, asyncio.Event())


def test_a_wrong_setting_is_one_plain_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, "run"],
        env=SharedFiles(directory=tmp_path).environment(CAPACITY_MAP="linux"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: CAPACITY_MAP: 'linux' is not LABEL=SLOTS")
    assert "Traceback" not in done.stderr
