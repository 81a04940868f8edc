"""The stops of the demo name the reason when one takes too long."""

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from solstice_cli.demo.stops import StopFailed, Stops, Unexpected


@pytest.fixture
def stops() -> Stops:
    return Stops(Console(file=StringIO()))


async def because() -> str:
    return "lint waits: the disk is full"


async def nothing_known() -> str:
    raise Unexpected("nobody answers")


async def test_late_stop_says_why(stops: Stops) -> None:
    with pytest.raises(
        StopFailed, match=r"^stop 1 failed: jobs: not within 0 s: lint waits: the disk is full$"
    ):
        async with stops.stop("jobs", limit_seconds=0, why_late=because):
            await asyncio.sleep(30)


async def test_late_stop_says_that_it_is_late_when_the_reason_is_unknown(stops: Stops) -> None:
    with pytest.raises(StopFailed, match=r"not within 0 s$"):
        async with stops.stop("jobs", limit_seconds=0, why_late=nothing_known):
            await asyncio.sleep(30)


async def test_stop_that_failed_by_itself_is_not_called_late(stops: Stops) -> None:
    with pytest.raises(StopFailed, match=r"failed: jobs: the run ended as failed$"):
        async with stops.stop("jobs", limit_seconds=30, why_late=because):
            raise Unexpected("the run ended as failed")
