"""Work that a service repeats until it is cancelled, whatever goes wrong in one round."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, Literal

import structlog

from solstice_common.errors import BrokerUnavailable, StoreUnavailable

JITTER: Final = 0.2
"""A share of the interval: processes that started together drift apart."""

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

    A round that fails is logged as the event `failed` and does not end the loop: StoreUnavailable and BrokerUnavailable at
    the level `unavailable`, since the next round may find them back; anything else with its traceback, since it is a bug.
    """
    if first_after != "nothing":
        share = (
            rng.uniform(1.0 - JITTER, 1.0 + JITTER) if first_after == "interval" else rng.uniform(0.0, 1.0)
        )
        await sleep(every_seconds * share)
    while True:
        try:
            await work()
        except (StoreUnavailable, BrokerUnavailable) as error:
            getattr(log, unavailable)(failed, detail=str(error))
        except Exception as error:
            log.exception(failed, detail=str(error))
        await sleep(every_seconds * rng.uniform(1.0 - JITTER, 1.0 + JITTER))
