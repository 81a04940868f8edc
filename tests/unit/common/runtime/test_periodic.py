"""A periodic loop survives failures and bugs, and ends when cancelled."""

import asyncio
import random
from enum import StrEnum

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.periodic import on_notification, periodic

ROUNDS = 5


class Event(StrEnum):
    PAUSED = "test.paused"


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
        "failed": Event.PAUSED,
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
async def test_an_unavailable_broker_is_reported_and_retried(error: Exception, unavailable: str) -> None:
    work = Work(error)
    with capture_logs() as logs:
        await run(work, unavailable=unavailable)
    assert work.rounds == ROUNDS
    assert [(each["event"], each["log_level"]) for each in logs] == [(Event.PAUSED, unavailable)]
    assert "gone" in logs[0]["detail"]


async def test_a_bug_in_one_round_has_its_traceback_in_the_log_and_ends_nothing() -> None:
    work = Work(LookupError("a bug"))
    with capture_logs() as logs:
        await run(work)
    assert work.rounds == ROUNDS
    assert [(each["event"], each["log_level"], each["exc_info"]) for each in logs] == [
        (Event.PAUSED, "error", True)
    ]


async def test_a_cancellation_ends_it() -> None:
    task = asyncio.ensure_future(
        periodic(
            Work(),
            every_seconds=10.0,
            rng=random.Random(7),
            log=structlog.get_logger("test"),
            failed=Event.PAUSED,
        )
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class ScriptedWork:
    """Returns these results, of which exceptions are raised; `Enough` follows them."""

    def __init__(self, *results: float | Exception) -> None:
        self.results, self.times = list(results), list[float]()
        self.notified, self.is_overtaken = asyncio.Event(), False
        """Whether something changes after each call has read the state, and before it returns."""

    async def __call__(self) -> float:
        self.times.append(asyncio.get_running_loop().time())
        if not self.results:
            raise Enough
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        if self.is_overtaken:
            self.notified.set()
            await asyncio.sleep(0)
        return result

    async def run(self, retry_seconds: float = 3600.0, **changes: object) -> None:
        arguments = {
            "notified": self.notified,
            "retry_seconds": retry_seconds,
            "rng": random.Random(7),
            "log": structlog.get_logger("test"),
            "failed": Event.PAUSED,
            **changes,
        }
        async with asyncio.timeout(30):
            await on_notification(self, **arguments)


async def test_notification_ends_the_pause_that_a_look_asked_for() -> None:
    calls = ScriptedWork(3600.0)
    asyncio.get_running_loop().call_later(0.05, calls.notified.set)
    with pytest.raises(Enough):
        await calls.run()
    assert 0.04 <= calls.times[1] - calls.times[0] < 20.0


async def test_notification_during_a_look_is_not_lost() -> None:
    calls = ScriptedWork(3600.0)
    calls.is_overtaken = True
    with pytest.raises(Enough):
        await calls.run()
    assert len(calls.times) == 2


async def test_look_comes_as_soon_as_the_last_one_asked_for() -> None:
    calls = ScriptedWork(0.0, 0.05)
    with pytest.raises(Enough):
        await calls.run()
    first, second, third = calls.times
    assert second - first < 20.0
    assert 0.04 <= third - second < 20.0


@pytest.mark.parametrize(
    ("error", "level"),
    [(StoreUnavailable("a store", "gone"), "warning"), (LookupError("gone"), "error")],
    ids=["unavailable", "mistake"],
)
async def test_failed_look_is_logged_and_repeated(error: Exception, level: str) -> None:
    calls = ScriptedWork(error)
    with capture_logs() as logs, pytest.raises(Enough):
        await calls.run(retry_seconds=0.05)
    assert calls.times[1] - calls.times[0] >= 0.04 * 0.9
    assert [(each["event"], each["log_level"]) for each in logs] == [(Event.PAUSED, level)]
    assert "gone" in logs[0]["detail"]
    assert bool(logs[0].get("exc_info")) is (level == "error")


async def test_looks_end_when_they_are_no_longer_wanted() -> None:
    calls = ScriptedWork(0.0, 0.0)
    await calls.run(ended=lambda: len(calls.times) == 2)
    assert len(calls.times) == 2
