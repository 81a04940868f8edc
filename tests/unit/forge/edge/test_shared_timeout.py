"""One timer for many waits cancels those that are due, and no others."""

import asyncio

import pytest

from solstice_forge.edge.shared_timeout import SharedTimeout


async def test_a_task_that_waits_too_long_gets_a_timeout() -> None:
    shared = SharedTimeout(0.02)
    with pytest.raises(TimeoutError), shared:
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_task_that_finishes_in_time_is_never_cancelled() -> None:
    shared = SharedTimeout(0.02)
    with shared:
        await asyncio.sleep(0)
    await asyncio.sleep(0.06)


async def test_only_late_tasks_get_the_timeout() -> None:
    shared, go_on = SharedTimeout(0.2), asyncio.Event()

    async def waits(event: asyncio.Event) -> str:
        try:
            with shared:
                await event.wait()
        except TimeoutError:
            return "too late"
        return "in time"

    never = [asyncio.ensure_future(waits(asyncio.Event())) for _ in range(3)]
    soon = asyncio.ensure_future(waits(go_on))
    await asyncio.sleep(0)
    go_on.set()
    assert await soon == "in time"
    assert await asyncio.gather(*never) == ["too late"] * 3


async def test_it_may_be_entered_again_by_the_same_task() -> None:
    shared = SharedTimeout(0.02)
    for _ in range(3):
        with pytest.raises(TimeoutError), shared:
            await asyncio.Event().wait()


async def test_a_task_that_is_cancelled_from_outside_is_cancelled() -> None:
    shared = SharedTimeout(60)

    async def waits() -> None:
        with shared:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_body_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), SharedTimeout(60):
        raise ValueError("mine")


async def test_without_waiters_no_timer_runs() -> None:
    shared = SharedTimeout(0.01)
    with shared:
        pass
    await asyncio.sleep(0.03)
    assert shared._timer is None
