"""Serves the connections of a small server for one command of git."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class LoopbackConnections:
    """Serves each connection in a task of its own.

    `name` is that of the tasks. More than `limit` connections at once are closed.
    """

    def __init__(self, serve: Serve, name: str, limit: int | None = None) -> None:
        self._serve, self._name, self._limit = serve, name, limit
        self._tasks = set[asyncio.Task[None]]()
        self._ended = False

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection, or close it."""
        if self._ended or (self._limit is not None and len(self._tasks) >= self._limit):
            writer.close()
            return

        def ended(task: asyncio.Task[None]) -> None:
            # Here, since a task that is cancelled before its first step runs nothing of its own.
            self._tasks.discard(task)
            writer.close()

        task = asyncio.create_task(self._serve(reader, writer), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def end(self) -> None:
        """End all connections, and close those that are still to come."""
        self._ended = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
