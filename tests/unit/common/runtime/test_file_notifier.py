import asyncio
import errno
import os
from pathlib import Path
from typing import Any, Never

import pytest

from solstice_common.runtime.file_notifier import Doorbell


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_ring_wakes_every_listener(tmp_path: Path) -> None:
    bell, same_bell = Doorbell(tmp_path / "bell"), Doorbell(tmp_path / "bell")
    async with bell.listen() as one, same_bell.listen() as other, asyncio.timeout(10):
        bell.ring()
        await asyncio.gather(one.wait(), other.wait())


async def test_a_cleared_event_waits_for_the_next_ring(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path)
    async with bell.listen() as rung, asyncio.timeout(10):
        for _ in range(3):
            bell.ring()
            await rung.wait()
            rung.clear()
            assert not rung.is_set()


async def test_a_ring_from_a_thread_wakes_as_well(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path)
    async with bell.listen() as rung, asyncio.timeout(10):
        await asyncio.to_thread(bell.ring)
        await rung.wait()


async def test_a_listener_that_does_not_look_never_blocks_the_ringer(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path)
    async with bell.listen() as rung, asyncio.timeout(60):
        for _ in range(66_000):  # more than a pipe holds
            bell.ring()
        await rung.wait()


async def test_listeners_of_one_bell_share_what_a_ring_costs(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path)
    async with bell.listen() as one, asyncio.timeout(10):
        async with bell.listen() as other:
            assert len(entries(tmp_path)) == 1
            bell.ring()
            await asyncio.gather(one.wait(), other.wait())
            one.clear()
        bell.ring()
        await one.wait()
    assert entries(tmp_path) == []
    async with bell.listen() as again, asyncio.timeout(10):
        bell.ring()
        await again.wait()


async def test_leaving_takes_the_bell_away(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path)
    async with bell.listen():
        assert len(entries(tmp_path)) == 1
    assert entries(tmp_path) == []
    bell.ring()


def test_the_bell_of_a_listener_that_died_is_tidied_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "left-behind.fifo")
    Doorbell(tmp_path).ring()
    assert entries(tmp_path) == []


async def test_a_ringer_without_descriptors_leaves_the_living_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> Never:
        raise OSError(errno.EMFILE, "Too many open files")

    bell = Doorbell(tmp_path)
    async with bell.listen() as rung, asyncio.timeout(10):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", exhausted)
            bell.ring()
        assert len(entries(tmp_path)) == 1
        bell.ring()
        await rung.wait()


async def test_ringing_in_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "bell")
    (tmp_path / "bell").rmdir()
    bell.ring()
    async with bell.listen() as rung, asyncio.timeout(10):
        bell.ring()
        await rung.wait()
