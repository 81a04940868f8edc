"""What commands ask of an orchestrator: one connection for one command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

from solstice_common.api_client import OrchestratorClient
from solstice_common.errors import ConfigurationError
from solstice_common.settings import ClientSettings

T = TypeVar("T")


def answered(settings: ClientSettings, ask: Callable[[OrchestratorClient], Awaitable[T]]) -> T:
    """What comes of these questions. Raises ServiceRefused and ServiceUnavailable."""

    async def asked() -> T:
        async with OrchestratorClient.of(settings) as api:
            return await ask(api)

    return asyncio.run(asked())


def is_list(context: typer.Context) -> bool:
    """Whether a command of several words was given without one, and so lists. Raises ConfigurationError."""
    word = context.invoked_subcommand
    if word is not None and any(context.params.values()):
        raise ConfigurationError(f"write options behind the word: solstice {context.info_name} {word} ...")
    return word is None
