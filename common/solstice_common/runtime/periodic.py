"""Repeats a service's work until it is cancelled, also after failed rounds."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import Final, Literal

import structlog

from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.pausing import pause

JITTER: Final = 0.2
"""The random part of the interval, by which processes that started together drift apart."""

Sleep = Callable[[float], Awaitable[None]]


async def periodic(
    work: Callable[[], Awaitable[object]],
    *,
    every_seconds: float,
    rng: random.Random,
    log: structlog.stdlib.BoundLogger,
    failed: StrEnum,
    unavailable: Literal["debug", "warning"] = "warning",
    first_after: Literal["nothing", "interval", "part of the interval"] = "interval",
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Do `work` about every `every_seconds` until cancelled.

    A round that fails is logged as the event `failed` and does not end the loop: StoreUnavailable and
    BrokerUnavailable at the level `unavailable`, since the next round may succeed; any other error with its
    traceback, since it is a bug.
    """
    if first_after != "nothing":
        await sleep(
            _about(every_seconds, rng) if first_after == "interval" else every_seconds * rng.uniform(0.0, 1.0)
        )
    while True:
        with _failures_logged(log, failed, unavailable):
            await work()
        await sleep(_about(every_seconds, rng))


async def on_notification(
    work: Callable[[], Awaitable[float]],
    *,
    notified: asyncio.Event,
    retry_seconds: float,
    rng: random.Random,
    log: structlog.stdlib.BoundLogger,
    failed: StrEnum,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Call `work` at once, at each notification, and after the seconds that it returned.

    It repeats that until it is cancelled, or until `ended`. A failed call is logged as `periodic` does, at
    the level warning, and the next one comes after about `retry_seconds`.
    """
    while not ended():
        # Before the call: a notification during it requires another call, and must not be lost.
        notified.clear()
        seconds = _about(retry_seconds, rng)
        with _failures_logged(log, failed, "warning"):
            seconds = await work()
        await pause(seconds, unless=notified)


def _about(seconds: float, rng: random.Random) -> float:
    return seconds * rng.uniform(1.0 - JITTER, 1.0 + JITTER)


@contextlib.contextmanager
def _failures_logged(
    log: structlog.stdlib.BoundLogger, failed: StrEnum, unavailable: Literal["debug", "warning"]
) -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, BrokerUnavailable) as error:
        getattr(log, unavailable)(failed, detail=str(error))
    except Exception as error:
        log.exception(failed, detail=str(error))
