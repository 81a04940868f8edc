"""The supervisor of a job writes its small checkout as the orchestrator does."""

import asyncio
import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from solstice_orchestrator.processes.forked_supervisors import SupervisorStarter
from solstice_orchestrator.processes.small_copies import (
    CheckoutFile,
    CheckoutFiles,
    reason_of,
    sent,
    write_received,
)
from solstice_orchestrator.worker.executors.supervisor_handle import open_supervisor
from solstice_orchestrator.worker.workspaces import Workspace
from tests.builders import execution, job
from tests.executor_harness import ExecutorHarness, replace_checkout
from tests.repositories import files_below, written_copy

PLAN = json.dumps({"directory": "/", "env": {}, "grace": 1, "timeout": 60, "steps": []}).encode() + b"\n"


def copy_of(*files: CheckoutFile) -> CheckoutCopy:
    """Return a checkout of these files, whose index names none."""
    index = b"DIRC" + bytes(8 + 20)
    repository = CheckoutFile(b".git", stat.S_IFDIR | 0o777)
    return CheckoutCopy.of(CheckoutFiles([repository, *files], index, stat.S_IFREG | 0o666, [], "sha1"))


STRANGE = copy_of(
    CheckoutFile(b"below", stat.S_IFDIR | 0o777),
    CheckoutFile(b"below/run", stat.S_IFREG | 0o777, b"#!/bin/sh\n"),
    CheckoutFile(b"\xff\n not UTF-8", stat.S_IFREG | 0o666, b"\0\xff" * 50_000),
    CheckoutFile(b"link", stat.S_IFLNK | 0o777, b"below/\xfe"),
    CheckoutFile(b".git/pack", stat.S_IFREG | 0o444, b""),
)
"""More than a pipe takes at once."""


@contextmanager
def pipe_of(content: bytes, *, is_open: bool) -> Iterator[int]:
    """Return a pipe with these bytes, whose writer is there or gone."""
    readable, writable = os.pipe()
    try:
        os.write(writable, content)
        if not is_open:
            os.close(writable)
        yield readable
    finally:
        os.close(readable)
        if is_open:
            os.close(writable)


async def supervised(place: Workspace) -> bool:
    """Let a supervisor write the checkout of the workspace; return whether it was ready."""
    async with open_supervisor(execution(job()), place, PLAN) as opened:
        if not await opened.is_ready():
            return False
        return (await opened.verdict()).how == "completed"


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "started by itself"])
async def test_a_supervisor_writes_what_the_orchestrator_writes(
    harness: ExecutorHarness, tmp_path: Path, *, forked: bool
) -> None:
    (expected := tmp_path / "expected").mkdir()
    assert written_copy(STRANGE, expected)
    async with harness.workspaces.attempt("x") as empty:
        place = replace(empty, checkout=STRANGE)
        assert await supervised(place if forked else replace(place, starter=None))
        assert files_below(place.source) == files_below(expected)
    assert len(files_below(expected)) == 7


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "started by itself"])
async def test_why_a_checkout_cannot_be_written_reaches_the_caller(
    harness: ExecutorHarness, *, forked: bool
) -> None:
    async with harness.workspaces.attempt("x") as empty:
        broken = copy_of(CheckoutFile(b"none/a", stat.S_IFREG | 0o666))
        place = replace(empty, checkout=broken)
        with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: 'none/a'$"):
            await supervised(place if forked else replace(place, starter=None))


async def test_what_a_late_supervisor_wrote_is_not_in_the_way(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.workspaces.attempt("x") as empty:
        (empty.source / "below").mkdir()

        async def too_late(*_: object) -> None:
            return None

        monkeypatch.setattr(SupervisorStarter, "fork", too_late)
        assert await supervised(replace(empty, checkout=STRANGE))
        assert (empty.source / "below" / "run").exists()


async def test_a_job_whose_checkout_cannot_be_written_ends_as_the_worlds_failure(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_checkout(harness, small_checkouts=SmallCheckouts(1024**3))
    assert (await harness.run("true")).state is JobState.SUCCEEDED
    broken = copy_of(CheckoutFile(b"none/a", stat.S_IFREG | 0o666))
    monkeypatch.setattr(SmallCheckouts, "find", lambda *_: broken)
    outcome = await harness.run("true")
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.MACHINE_FAILED)
    assert outcome.detail.endswith("[Errno 2] No such file or directory: 'none/a'")


async def test_a_job_may_be_cancelled_before_its_checkout_is_written(harness: ExecutorHarness) -> None:
    async with harness.workspaces.attempt("x") as empty:
        place = replace(empty, checkout=STRANGE)
        entered = asyncio.Event()

        async def opened() -> None:
            async with open_supervisor(execution(job()), place, PLAN):
                entered.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(opened())
        await entered.wait()
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert not place.root.exists()


@pytest.mark.parametrize("length", [3, 1000, None], ids=["no length", "a part", "all"])
def test_nothing_is_written_once_the_orchestrator_is_gone(tmp_path: Path, length: int | None) -> None:
    words = sent(copy_of(CheckoutFile(b"a", stat.S_IFREG | 0o666, b"x" * 2000)).packed)
    with pipe_of(words[:length], is_open=False) as control, pipe_of(b"", is_open=True) as verdict:
        assert not write_received(control, verdict, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_plan_behind_a_checkout_is_left_in_the_pipe(tmp_path: Path) -> None:
    words = sent(copy_of(CheckoutFile(b"a", stat.S_IFREG | 0o666, b"ahoy")).packed)
    with pipe_of(words + PLAN, is_open=True) as control:
        assert write_received(control, -1, str(tmp_path))
        assert os.read(control, 4096) == PLAN
    assert (tmp_path / "a").read_bytes() == b"ahoy"


def test_only_a_failed_checkout_is_a_reason() -> None:
    assert reason_of(b'{"event": "ready"}\n') is None
    reason = reason_of(b'unwritten {"errno": 28, "text": "No space left on device", "file": "a"}\n')
    assert isinstance(reason, OSError)
    assert (reason.errno, str(reason)) == (errno.ENOSPC, "[Errno 28] No space left on device: 'a'")
