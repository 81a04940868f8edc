"""Runs both services as processes on one RabbitMQ, as an operator does."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.bench.load import SECRET
from tests.servers.ports import free_ports

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The addresses and pids of the services."""

    forge_port: int
    orchestrator_url: str
    pids: Mapping[str, int]


@asynccontextmanager
async def services(
    amqp_url: str, directory: Path, *, slots: int, python: Path | str = sys.executable, **settings: str
) -> AsyncIterator[Services]:
    """forge-integration and an orchestrator with the scripted executor, ready. Leaving ends them by SIGTERM.

    The Python of another checkout starts the services of that.
    """
    forge_port, orchestrator_port = free_ports(2)
    environment = {
        **os.environ,
        "AMQP_URL": amqp_url,
        "SOLSTICE_HOME": str(directory),
        "FORGE_PORT": str(forge_port),
        "FORGEJO_WEBHOOK_SECRET": SECRET,
        "ORCHESTRATOR_PORT": str(orchestrator_port),
        "EXECUTOR": "scripted",
        "CAPACITY_MAP": f"linux={slots}",
        "GIT_PROTOCOLS": "file",
        "LOG_LEVEL": "warning",
        # The load itself must not take slots away.
        "GOVERNOR": "off",
        **settings,
    }
    commands = {
        "forge-integration": (forge_port, "from solstice_forge.cli import main; main()", "serve"),
        "orchestrator": (orchestrator_port, "from solstice_orchestrator.cli import main; main()", "run"),
    }
    async with AsyncExitStack() as stack:
        pids = {}
        for name, (port, code, command) in commands.items():
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(python, "-c", code, command, env=environment)
            )
            # Before it is awaited: a cancelled start leaves a process, too.
            stack.push_async_callback(_end, starting)
            process = await asyncio.shield(starting)
            pids[name] = process.pid
            await _ready(f"http://127.0.0.1:{port}/readyz", process)
        yield Services(
            forge_port=forge_port, orchestrator_url=f"http://127.0.0.1:{orchestrator_port}", pids=pids
        )


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with httpx2.AsyncClient() as client, asyncio.timeout(TIMEOUT_SECONDS):
        while process.returncode is None:
            try:
                if (await client.get(url)).is_success:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise RuntimeError(f"a service ended with exit code {process.returncode} before it was ready")


async def _end(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    process = await starting
    if process.returncode is None:
        process.terminate()
    await process.wait()
