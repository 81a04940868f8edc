"""Each tick fires once while two orchestrators' clocks are stepped and one is killed."""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from solstice_orchestrator.schedules.cron import timing
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.schedule_store import ScheduleView, TickView
from tests.repositories import Repository
from tests.schedules import added_schedule
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.postgresql import ScratchDatabase

WAIT_SECONDS: Final = 90.0
SLOW, FAST = "*/10 * * * * *", "*/2 * * * * *"
START: Final = """
import asyncio, os, sys, time
from pathlib import Path
true_time, skew, gate = time.time, Path(os.environ["SKEW_FILE"]), Path(os.environ["GATE_FILE"])
time.time = lambda: true_time() + float(skew.read_text() or 0)
from solstice_orchestrator import daemon
head_of = daemon.head_of
async def gated(branch, **more):
    found = await head_of(branch, **more)
    while branch.ref.endswith("gated") and gate.exists():
        await asyncio.sleep(0.01)
    return found
daemon.head_of = gated
from solstice_orchestrator.cli import main
main()
"""
"""The clock is wrong by the number in a file; a process with a gate waits at it between the forge and the
store.
"""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with a clock of its own."""

    directory: Path
    name: str

    @property
    def gate(self) -> Path:
        return self.directory / f"{self.name}.gate"

    def step(self, hours: float) -> None:
        """Set its clock, also while processes run there."""
        new = self.directory / f"{self.name}.new"
        new.write_text(str(hours * 3600))
        new.rename(self.directory / f"{self.name}.skew")

    def settings(self) -> dict[str, str]:
        return {
            "WORKER_NAME": self.name,
            "SKEW_FILE": str(self.directory / f"{self.name}.skew"),
            "GATE_FILE": str(self.gate),
        }


async def wait_until_true(what: str, fact: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await fact():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {what}"
        await asyncio.sleep(0.05)


@pytest.fixture
async def store(store_database: ScratchDatabase) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url) as opened:
        yield opened


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.timeout(400)
async def test_every_tick_is_one_run_although_orchestrators_are_killed_and_clocks_are_wrong(
    tmp_path: Path, store: JobStore, store_database: ScratchDatabase, stack: ExitStack
) -> None:
    repository = Repository(tmp_path / "app")
    commit = repository.commit({".solstice/job.sh": "true\n"})
    repository.git("branch", "gated")
    shared_files = SharedFiles(directory=tmp_path)
    one, two = (Host(directory=tmp_path, name=name) for name in ("one", "two"))
    one.step(-2.0)
    two.step(3.0)

    def start(host: Host) -> OrchestratorProcess:
        settings = {
            "DATABASE_URL": store_database.url,
            "EXECUTOR": "scripted",
            "CAPACITY_MAP": "linux=50",
        }
        return stack.enter_context(orchestrator(shared_files, start=START, **settings, **host.settings()))

    async def at_the_gate(host: Host) -> bool:
        return bool(
            await asyncio.to_thread(
                store_database.query,
                "SELECT FROM ticks JOIN schedules USING (schedule_id) WHERE state = 'due' AND branch = 'gated'"
                " AND worker_id LIKE $1 AND lease_until IS NOT NULL",
                f"{host.name}:%",
            )
        )

    async def fired(schedule: ScheduleView, least: int) -> bool:
        ticks = await store.schedule_store.ticks(schedule.schedule_id, 1000)
        return sum(tick.state is TickState.FIRED for tick in ticks) >= least

    begun = await store.schedule_store.now()
    fast = [
        await added_schedule(store.schedule_store, name=f"fast-{number}", cron=FAST, repo_url=repository.url)
        for number in range(3)
    ]
    # The first to be killed is alone with the gated tick.
    one.gate.touch()
    doomed = await asyncio.to_thread(start, one)
    slow = await added_schedule(
        store.schedule_store, name="slow", cron=SLOW, branch="gated", repo_url=repository.url
    )
    await wait_until_true("the tick is in its hands", lambda: at_the_gate(one))
    await asyncio.to_thread(start, two)
    doomed.kill()
    await wait_until_true("the other one has fired it", lambda: fired(slow, 1))
    one.gate.unlink()
    # Clocks leap while both are at work, forwards and back.
    one.step(9.0)
    await asyncio.to_thread(start, one)
    two.step(-30.0)
    await wait_until_true("ticks go on", lambda: fired(slow, 2))
    one.step(-1.0)
    two.step(0.5)
    await wait_until_true("and on", lambda: fired(slow, 3))
    for schedule in (*fast, slow):
        await store.schedule_store.pause(schedule.name)
    ended = await store.schedule_store.now()

    run_ids: list[str] = []
    lateness: list[float] = []
    for schedule in (*fast, slow):
        ticks = [*reversed(await store.schedule_store.ticks(schedule.schedule_id, 1000))]
        when = timing(schedule.cron, "UTC", seconds=True)
        expected_ticks = [*when.between(schedule.created_at, ended)]
        recorded = [
            at for tick in ticks for at in when.between((tick.first_at or tick.tick_at) - 1, tick.tick_at)
        ]
        assert recorded == expected_ticks, schedule.name
        assert sum(tick.count for tick in ticks) == len(expected_ticks)
        run_ids += [str(tick.run_id) for tick in ticks if tick.state is TickState.FIRED]
        lateness += [late(tick) for tick in ticks if tick.state is TickState.FIRED]
        assert {tick.commit_sha for tick in ticks if tick.state is TickState.FIRED} == {commit}
        # A slow machine may be late; no tick may be lost without a record.
        assert {tick.reason for tick in ticks if tick.state is not TickState.FIRED} <= {
            TickReason.MISSED,
            TickReason.OVERTAKEN,
            TickReason.PAUSED,
        }
    runs = (await store.runs(limit=1000)).runs
    assert len(run_ids) == len(set(run_ids)) == len(runs)
    assert {run.run_id for run in runs} == set(run_ids)
    assert all(run.event == "schedule" for run in runs)
    sys.stdout.write(
        f"{len(runs)} runs in {ended - begun:.0f} s, late by {statistics.median(lateness):.3f} s in the median,"
        f" {sorted(lateness)[-2]:.3f} s at most except for the one that was killed\n"
    )


def late(tick: TickView) -> float:
    assert tick.settled_at is not None
    return tick.settled_at - tick.tick_at
