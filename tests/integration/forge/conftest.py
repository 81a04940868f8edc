"""Settings of a forge-integration for one test, and the service in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from tests.integration.forge.pushes import SECRET
from tests.servers.server import TLS

Running = Callable[[ForgeSettings], AbstractAsyncContextManager[httpx2.AsyncClient]]
MakeSettings = Callable[..., ForgeSettings]


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ForgeSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings of a service for this test: the embedded broker and every forge."""

    def make(**given: object) -> ForgeSettings:
        fields: dict[str, object] = {
            "forge_port": 0,
            "forge_inbox_url": f"sqlite:///{tmp_path / 'inbox.db'}",
            "amqp_url": f"sqlite:///{tmp_path / 'broker.db'}",
            "solstice_tokens": tmp_path / "tokens.json",
            **{f"{name}_webhook_secret": SECRET for name in ("github", "forgejo", "gitea", "gitlab")},
            **given,
        }
        return ForgeSettings.model_validate(fields)

    return make


@pytest.fixture
def running() -> Running:
    """Run the service in this process; the client's base URL is its address."""

    @asynccontextmanager
    async def run(settings: ForgeSettings) -> AsyncIterator[httpx2.AsyncClient]:
        stop: asyncio.Event = asyncio.Event()
        where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                serve(
                    settings,
                    stop=stop,
                    listening=lambda host, port: where.set_result(f"http://{host}:{port}"),
                )
            )
            async with httpx2.AsyncClient(base_url=await where, timeout=30, verify=TLS) as client:
                yield client
            stop.set()

    return run
