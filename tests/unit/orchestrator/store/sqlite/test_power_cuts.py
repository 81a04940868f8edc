"""After a power cut, the store still has everything that others know from it."""

import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from solstice_common.messages import JobStatusV1
from solstice_common.storage import sqlite
from solstice_common.values.times import format_seconds
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.protocol import JobStore
from tests.builders import job, job_request
from tests.stores import (
    LEASE,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    chunk,
    claimed,
    planning_task,
    running,
)

HOUR = 3600.0


class Disk:
    """Copies a database after each commit that waits for the disk.

    A power cut leaves the last copy.
    """

    def __init__(self, database: Path, copies: Path) -> None:
        self._database, self._copies = database, copies
        self._cuts = 0
        self.synced = 0

    def sync(self) -> None:
        self.synced += 1
        copy = self._copies / str(self.synced)
        copy.mkdir(parents=True)
        for end in ("", "-wal"):
            shutil.copy(f"{self._database}{end}", copy)

    @asynccontextmanager
    async def after_power_cut(self, clock: ManualClock | None = None) -> AsyncIterator[JobStore]:
        """The store as it is after a power cut now."""
        self._cuts += 1
        left = self._copies / f"cut-{self._cuts}"
        shutil.copytree(self._copies / str(self.synced), left)
        async with open_store(f"sqlite:///{left / self._database.name}", clock=clock) as store:
            yield store


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, commit = Disk(tmp_path / "jobs.db", tmp_path / "copies"), sqlite._commit

    def commit_and_sync(
        connection: sqlite3.Connection, path: Path, calls: Sequence[sqlite._Call]
    ) -> Sequence[sqlite._Settled] | None:
        settled = commit(connection, path, calls)
        if path == tmp_path / "jobs.db" and any(call.synchronous for call in calls):
            disk.sync()
        return settled

    monkeypatch.setattr(sqlite, "_commit", commit_and_sync)
    return disk


async def published(store: JobStore) -> dict[str, str]:
    """Publish the whole outbox; return the newest state of each context in it."""
    messages = await store.outbox(100)
    await store.published([message.number for message in messages])
    statuses = [JobStatusV1.decode(message.body) for message in messages]
    return {status.context: status.state for status in statuses}


async def states_in(store: JobStore, run_id: str) -> dict[str, str]:
    """The state of the run and of each job, by context."""
    run = await store.run(run_id)
    assert run is not None
    jobs = await store.jobs(run_id=run_id, limit=9)
    return {"solstice": run.state, **{f"solstice/{job.name}": job.state for job in jobs}}


async def test_no_published_status_is_forgotten(tmp_path: Path, disk: Disk) -> None:
    clock, newest = ManualClock(), dict[str, str]()
    async with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as store:

        async def nothing_is_forgotten() -> None:
            states = await published(store)
            assert states
            newest.update(states)
            async with disk.after_power_cut() as left:
                assert await states_in(left, run_id) == newest

        run_id = await admitted(store, job_request(not_before=format_seconds(clock() + HOUR)))
        await nothing_is_forgotten()
        clock.forward(2 * HOUR)
        task = await planning_task(store)
        await nothing_is_forgotten()
        assert await store.planned(task, [job("true")])
        await nothing_is_forgotten()
        (claim,) = await claimed(store)
        await nothing_is_forgotten()
        assert await store.finish(claim.key, SUCCEEDED)
        await nothing_is_forgotten()


async def test_a_worker_on_another_machine_keeps_its_lease_and_its_log(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as store:
        claim = await running(store)
        assert await store.append_log(claim.key, [chunk(1)])
        async with disk.after_power_cut(clock) as left:
            log = await left.log(claim.key.job_id)
            assert log is not None
            assert list(log.chunks) == [chunk(1)]
        clock.forward(LEASE - 1)
        await store.renew(WORKER, [claim.key])
        clock.forward(LEASE - 1)
        async with disk.after_power_cut(clock) as left:
            assert await left.rescue() == []
            assert await left.finish(claim.key, SUCCEEDED)


async def test_what_is_repeated_without_harm_does_not_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await admitted(store)
        synced = disk.synced
        task = await planning_task(store)
        assert await published(store)
        assert disk.synced == synced
        async with disk.after_power_cut() as left:
            assert await planning_task(left) == task
            assert await published(left)
        assert await store.planned(task, [job("true")])
