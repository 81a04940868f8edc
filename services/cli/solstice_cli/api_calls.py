"""Calls an orchestrator's API, with one connection per command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.output import note_when_slow
from solstice_common.settings import ClientSettings, without_password

T = TypeVar("T")


def answered(settings: ClientSettings, request: Callable[[OrchestratorClient], Awaitable[T]]) -> T:
    """Run these calls and return their result.

    Raises ServiceRefused and ServiceUnavailable; reports a slow answer on a terminal.
    """
    return answered_at_length(settings, lambda api, _: request(api))


def answered_at_length(
    settings: ClientSettings, request: Callable[[OrchestratorClient, Callable[[], None]], Awaitable[T]]
) -> T:
    """Like `answered`, for calls that take long by nature.

    `request` calls its second argument at the first answer.
    """
    with note_when_slow(f"the orchestrator at {without_password(settings.solstice_url)}") as answers:

        async def requested() -> T:
            async with OrchestratorClient.of(settings) as api:
                return await request(api, answers)

        return asyncio.run(requested())
