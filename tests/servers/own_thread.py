"""Runs asynchronous work for tests that may run in an event loop themselves."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in an event loop and a thread of its own.

    A running event loop of the caller waits for it, and `asyncio.run` would leave the caller's thread without one.
    """
    with ThreadPoolExecutor(1, "work of a test") as pool:
        return pool.submit(asyncio.run, work).result()
