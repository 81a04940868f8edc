"""Wait for a PostgreSQL that is not available yet."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.pausing import pause
from solstice_common.settings import is_postgresql
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.settings import OrchestratorSettings

log = structlog.get_logger(__name__)

STORE_RETRY_SECONDS: Final = 2.0

T = TypeVar("T")


class StoppedWhileOpening(Exception):
    """The orchestrator was asked to stop while it waited for the database."""


async def retry_until_available(
    request: Callable[[], Awaitable[T]],
    settings: OrchestratorSettings,
    stop: asyncio.Event,
    rng: random.Random,
) -> T:
    """Return the store's answer; retry while a PostgreSQL is unavailable.

    After a power failure the orchestrator may start before its database.
    """
    failures = 0
    while True:
        try:
            return await request()
        except StoreUnavailable as error:
            if not is_postgresql(settings.database_url):
                raise
            if not failures:
                log.warning(LogEvent.STORE_AWAITED, detail=str(error))
        await pause(
            backoff_seconds(failures, rng=rng, base_seconds=0.2, cap_seconds=STORE_RETRY_SECONDS), unless=stop
        )
        if stop.is_set():
            raise StoppedWhileOpening
        failures += 1
