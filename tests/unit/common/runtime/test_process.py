"""Signals that end a process, and the errors of task groups."""

import asyncio
import gc
import os
import signal

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.runtime.process import (
    COLLECT_AFTER,
    SIGNALS,
    run_until_signalled,
    tune_garbage_collection,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_asks_to_stop(number: signal.Signals) -> None:
    stopped = []

    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stop.wait()
        stopped.append(number)

    run_until_signalled(serve)
    assert stopped == [number]


def test_second_signal_ends_at_once() -> None:
    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        run_until_signalled(serve)


def test_only_error_of_nested_groups_is_raised_as_itself() -> None:
    async def fail() -> None:
        raise ConfigurationError("a setting")

    async def serve(_stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(nested())

    async def nested() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fail())

    with pytest.raises(ConfigurationError, match="a setting"):
        run_until_signalled(serve)


def test_signals_have_their_usual_answers_once_it_has_ended() -> None:
    before = [signal.signal(number, signal.default_int_handler) for number in SIGNALS]

    async def serve(_stop: asyncio.Event) -> None:
        raise ConfigurationError("a setting")

    try:
        with pytest.raises(ConfigurationError):
            run_until_signalled(serve)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_several_errors_stay_a_group() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def serve(_stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(ValueError()))
            tasks.create_task(fail(KeyError()))

    with pytest.raises(ExceptionGroup) as caught:
        run_until_signalled(serve)
    assert len(caught.value.exceptions) == 2


def test_what_is_there_when_the_service_has_started_is_not_searched_for_cycles_again() -> None:
    before = gc.get_threshold()
    try:
        tune_garbage_collection()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == COLLECT_AFTER
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
