"""Notifications between processes of one machine, by a file."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any, Never

import pytest
from structlog.testing import capture_logs

from solstice_common.runtime import file_notifier
from solstice_common.runtime.file_notifier import FileNotifier


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_notification_wakes_every_listener(tmp_path: Path) -> None:
    notifier, same_notifier = FileNotifier(tmp_path / "notifier"), FileNotifier(tmp_path / "notifier")
    async with notifier.listen() as one, same_notifier.listen() as other, asyncio.timeout(10):
        notifier.notify()
        await asyncio.gather(one.wait(), other.wait())


async def test_a_cleared_event_waits_for_the_next_notification(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path)
    async with notifier.listen() as notified, asyncio.timeout(10):
        for _ in range(3):
            notifier.notify()
            await notified.wait()
            notified.clear()
            assert not notified.is_set()


async def test_a_notification_from_a_thread_wakes_as_well(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path)
    async with notifier.listen() as notified, asyncio.timeout(10):
        await asyncio.to_thread(notifier.notify)
        await notified.wait()


async def test_a_listener_that_does_not_look_never_blocks_the_notifier(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path)
    async with notifier.listen() as notified, asyncio.timeout(60):
        for _ in range(66_000):  # more than a pipe holds
            notifier.notify()
        await notified.wait()


async def test_listeners_of_one_notifier_share_what_a_notification_costs(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path)
    async with notifier.listen() as one, asyncio.timeout(10):
        async with notifier.listen() as other:
            assert len(entries(tmp_path)) == 1
            notifier.notify()
            await asyncio.gather(one.wait(), other.wait())
            one.clear()
        notifier.notify()
        await one.wait()
    assert entries(tmp_path) == []
    async with notifier.listen() as again, asyncio.timeout(10):
        notifier.notify()
        await again.wait()


async def test_leaving_removes_the_fifo(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path)
    async with notifier.listen():
        assert len(entries(tmp_path)) == 1
    assert entries(tmp_path) == []
    notifier.notify()


def test_the_fifo_of_a_listener_that_died_is_removed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "left-behind.fifo")
    FileNotifier(tmp_path).notify()
    assert entries(tmp_path) == []


async def test_a_notifier_without_descriptors_leaves_the_living_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> Never:
        raise OSError(errno.EMFILE, "Too many open files")

    notifier = FileNotifier(tmp_path)
    async with notifier.listen() as notified, asyncio.timeout(10):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", exhausted)
            notifier.notify()
        assert len(entries(tmp_path)) == 1
        notifier.notify()
        await notified.wait()


async def test_a_listener_without_descriptors_is_notified_as_soon_as_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> Never:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(file_notifier, "RETRY_SECONDS", 0.02)
    notifier = FileNotifier(tmp_path)
    with capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(os, "open", exhausted)
        async with notifier.listen() as notified:
            notifier.notify()
            await asyncio.sleep(0.1)
            assert not notified.is_set()
    assert [entry["event"] for entry in logs] == ["notifier.unavailable"]  # once for all tries
    assert entries(tmp_path) == []

    with capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(os, "open", exhausted)
        async with notifier.listen() as notified, asyncio.timeout(10):
            await asyncio.sleep(0.05)
            patched.undo()
            await notified.wait()  # a notification may have come before there was a FIFO
            notified.clear()
            notifier.notify()
            await notified.wait()
    assert [entry["event"] for entry in logs] == ["notifier.unavailable", "notifier.recovered"]
    assert entries(tmp_path) == []


async def test_notifying_in_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    notifier = FileNotifier(tmp_path / "notifier")
    (tmp_path / "notifier").rmdir()
    notifier.notify()
    async with notifier.listen() as notified, asyncio.timeout(10):
        notifier.notify()
        await notified.wait()
