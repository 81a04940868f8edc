"""Endless tasks beside a body end with it."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from solstice_common.broker.links.background import background
from solstice_common.telemetry.log_events import LogEvent


async def test_leaving_ends_the_tasks_and_an_error_of_the_body_stays_what_it_is() -> None:
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def failing() -> None:
        async with background({"endless": endless()}):
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await failing()
    assert ended.is_set()


async def test_mistake_of_a_task_is_logged_at_once_and_raised_on_leaving() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def beside(logs: Sequence[Mapping[str, object]]) -> None:
        async with background({"broken": broken()}):
            await asyncio.sleep(0.01)
            assert [(entry["event"], entry["task"]) for entry in logs] == [(LogEvent.TASK_CRASHED, "broken")]

    with capture_logs() as logs, pytest.raises(ZeroDivisionError):
        await beside(logs)
