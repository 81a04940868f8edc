"""Serves the connections of a small server for one command of git."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class LoopbackConnections:
    """Serves each connection in a task of its own.

    `name` is that of the tasks. More than `limit` connections at once are closed.
    """

    def __init__(self, serve: Serve, name: str, limit: int | None = None) -> None:
        self._serve, self._name, self._limit = serve, name, limit
        self._tasks = set[asyncio.Task[None]]()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection, or close it."""
        if self._limit is not None and len(self._tasks) >= self._limit:
            writer.close()
            return
        task = asyncio.create_task(self._run(reader, writer), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await self._serve(reader, writer)
