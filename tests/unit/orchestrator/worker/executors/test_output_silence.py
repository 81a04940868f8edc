"""The length of a silence, by a clock that is moved by hand."""

import asyncio

import pytest

from solstice_orchestrator.worker.executors.output_silence import OutputSilence
from tests.stores import ManualClock

LIMIT = 0.01


async def ends(silence: OutputSilence, limit: float = LIMIT) -> bool:
    """Whether it lasts this long; waits several limits to be sure that it does not."""
    try:
        async with asyncio.timeout(5 * LIMIT):
            await silence.lasts(limit)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("passed", "over"), [(0.0, False), (LIMIT / 2, False), (LIMIT, True), (5.0, True)])
async def test_silence_begins_at_once(passed: float, over: bool) -> None:
    clock = ManualClock()
    silence = OutputSilence(clock)
    clock.forward(passed)
    assert await ends(silence) is over


async def test_every_output_breaks_it() -> None:
    clock = ManualClock()
    silence = OutputSilence(clock)
    clock.forward(5)
    with silence.broken():
        pass
    assert not await ends(silence)
    clock.forward(5)
    assert await ends(silence)


async def test_output_that_waits_to_be_taken_is_no_silence() -> None:
    clock = ManualClock()
    silence = OutputSilence(clock)
    with silence.broken():
        clock.forward(1000)
        assert not await ends(silence)


async def test_without_a_limit_it_is_never_too_long() -> None:
    clock = ManualClock()
    silence = OutputSilence(clock)
    clock.forward(1000)
    assert not await ends(silence, 0)
