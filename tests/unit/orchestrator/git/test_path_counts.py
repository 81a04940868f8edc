"""Counting the paths of a tree ends early, however much git has still to say."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from solstice_orchestrator.git.command import Git
from solstice_orchestrator.git.objects.tree_entries import has_more_paths

PIECES = 1000


class ListingGit:
    """Lists ten paths in each iteration of the event loop."""

    def __init__(self, pieces: int) -> None:
        self._left = pieces

    async def converse(
        self, *_: str, read: Callable[[asyncio.StreamReader], Awaitable[None]], **__: Any
    ) -> None:
        stream, loop = asyncio.StreamReader(), asyncio.get_running_loop()

        def feed() -> None:
            self._left -= 1
            stream.feed_data(b"path\0" * 10)
            if self._left:
                loop.call_soon(feed)
            else:
                stream.feed_eof()

        feed()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_awaited(read(stream)))
            await asyncio.wait([reading])


async def _awaited(work: Awaitable[None]) -> None:
    await work


@pytest.mark.parametrize("most", [0, 5, 100])
async def test_a_tree_with_more_paths_is_known_while_git_goes_on(most: int) -> None:
    assert await has_more_paths(cast("Git", ListingGit(PIECES)), "0" * 40, most)


async def test_a_tree_with_few_paths_is_counted_to_its_end() -> None:
    assert not await has_more_paths(cast("Git", ListingGit(3)), "0" * 40, 30)
