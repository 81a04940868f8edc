import asyncio
import random
from enum import StrEnum

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.periodic import periodic

ROUNDS = 5


class Event(StrEnum):
    HELD = "test.held"


class Enough(BaseException):
    """Ends the loop, as a cancellation would."""


class Work:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.rounds, self.pauses = list(errors), 0, list[float]()

    async def __call__(self) -> None:
        self.rounds += 1
        if self.errors:
            raise self.errors.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.rounds == ROUNDS:
            raise Enough
        await asyncio.sleep(0)


async def run(work: Work, **changes: object) -> None:
    arguments = {
        "every_seconds": 10.0,
        "rng": random.Random(7),
        "log": structlog.get_logger("test"),
        "failed": Event.HELD,
        "sleep": work.sleep,
        **changes,
    }
    with pytest.raises(Enough):
        await periodic(work, **arguments)


@pytest.mark.parametrize(
    ("first_after", "pauses", "least", "most"),
    [("nothing", 5, 8.0, 12.0), ("interval", 6, 8.0, 12.0), ("part of the interval", 6, 0.0, 10.0)],
)
async def test_rounds_come_about_as_often_as_asked_for(
    first_after: str, pauses: int, least: float, most: float
) -> None:
    work = Work()
    await run(work, first_after=first_after)
    assert work.rounds == ROUNDS
    assert len(work.pauses) == pauses
    assert least <= work.pauses[0] <= most
    assert all(8.0 <= each <= 12.0 for each in work.pauses[1:])
    assert len(set(work.pauses)) == pauses


@pytest.mark.parametrize("unavailable", ["debug", "warning"])
@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("a store", "gone"), BrokerUnavailable("amqp://x", "gone")],
    ids=["store", "broker"],
)
async def test_what_is_unavailable_is_said_and_tried_again(error: Exception, unavailable: str) -> None:
    work = Work(error)
    with capture_logs() as logs:
        await run(work, unavailable=unavailable)
    assert work.rounds == ROUNDS
    assert [(each["event"], each["log_level"]) for each in logs] == [(Event.HELD, unavailable)]
    assert "gone" in logs[0]["detail"]


async def test_a_bug_in_one_round_has_its_traceback_in_the_log_and_ends_nothing() -> None:
    work = Work(LookupError("a bug"))
    with capture_logs() as logs:
        await run(work)
    assert work.rounds == ROUNDS
    assert [(each["event"], each["log_level"], each["exc_info"]) for each in logs] == [
        (Event.HELD, "error", True)
    ]


async def test_a_cancellation_ends_it() -> None:
    task = asyncio.ensure_future(
        periodic(
            Work(),
            every_seconds=10.0,
            rng=random.Random(7),
            log=structlog.get_logger("test"),
            failed=Event.HELD,
        )
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
