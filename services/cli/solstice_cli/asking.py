"""What commands ask of an orchestrator: one connection for one command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from solstice_common.api_client import OrchestratorClient
from solstice_common.commandline import said_when_slow
from solstice_common.settings import ClientSettings

T = TypeVar("T")


def answered(settings: ClientSettings, ask: Callable[[OrchestratorClient], Awaitable[T]]) -> T:
    """What comes of these questions. Raises ServiceRefused and ServiceUnavailable; says so when it takes long."""

    async def asked() -> T:
        async with OrchestratorClient.of(settings) as api:
            return await ask(api)

    with said_when_slow(f"the orchestrator at {settings.solstice_url}"):
        return asyncio.run(asked())
