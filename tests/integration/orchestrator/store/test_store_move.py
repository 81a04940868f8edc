"""A full SQLite store moves to PostgreSQL completely, or not at all."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from solstice_common.errors import ConfigurationError, SchemaTooNew, StoreUnavailable
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.schedules.ticks import TickState
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.admin import move as moving
from solstice_orchestrator.store.admin.check import check
from solstice_orchestrator.store.admin.move import MoveRefused, move
from solstice_orchestrator.store.protocol import AttemptKey, Duplicate, JobStore
from tests.builders import job_request
from tests.populated_store import PopulatedStore, populate
from tests.schedules import COMMIT, claimed_tick
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, WORKER, ManualClock, claimed, planning_task

LATER = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def populated(file: Path, clock: ManualClock) -> PopulatedStore:
    async with open_store(f"sqlite:///{file}", clock=clock) as store:
        return await populate(store, clock)


async def move_it(file: Path, database: ScratchDatabase, clock: ManualClock) -> moving.MoveResult:
    """An hour after the last orchestrator was seen."""
    return await move(file, database.url, clock=lambda: clock() + LATER)


async def everything(store: JobStore) -> list[object]:
    """What readers of a store can see."""
    seen: list[object] = [await store.counts()]
    for run in (await store.runs(limit=100)).runs:
        seen.append(run)
        for view in await store.jobs(run_id=run.run_id, limit=100):
            seen += [view, await store.attempts(view.job_id)]
            page = await store.log(view.job_id)
            seen.append(page and (page.attempt, tuple(page.chunks), page.state))
    return seen


async def every_schedule(store: JobStore) -> list[object]:
    """The same of what is built regularly."""
    seen: list[object] = []
    for schedule in await store.schedule_store.schedules(limit=100):
        seen += [schedule, await store.schedule_store.ticks(schedule.schedule_id, 100)]
    return seen


async def test_readers_see_the_same_in_both(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    moved = await move_it(file, postgresql_database, clock)
    async with (
        open_store(f"sqlite:///{file}", clock=clock) as source,
        open_store(postgresql_database.url, clock=clock) as target,
    ):
        assert await everything(target) == await everything(source)
        assert await every_schedule(target) == await every_schedule(source) != []
        assert len((await target.runs(limit=100)).runs) == len(populated.runs) == moved.rows["runs"]
    checkup = await check(postgresql_database.url)
    assert checkup.well
    assert checkup.counts == (await check(f"sqlite:///{file}")).counts


async def test_work_goes_on_where_it_was(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    await move_it(file, postgresql_database, clock)
    async with (
        open_store(f"sqlite:///{file}", clock=clock) as source,
        open_store(postgresql_database.url, clock=clock) as target,
    ):
        # Each status is published once, and new ones after the moved ones.
        reported = [row.body for row in await target.outbox(1000)]
        assert reported == [row.body for row in await source.outbox(1000)]
        assert reported
        # Earlier requests are known.
        assert await target.admit([job_request(idempotency_key="pushed once")]) == [
            Duplicate(run_id=populated.finished)
        ]
        # The job that ran is still its holder's, and what needs it follows.
        jobs = {view.name: view for view in await target.jobs(run_id=populated.running, limit=10)}
        attempt_keys = await keys(target, populated.running)
        renewal = await target.renew(WORKER, attempt_keys)
        assert renewal.lost == frozenset()
        assert [key.job_id for key in renewal.cancelled] == [jobs["lint"].job_id]
        for key in attempt_keys:
            assert await target.finish(key, SUCCEEDED)
        (claim,) = await claimed(target)
        assert claim.key.job_id == jobs["test"].job_id
        # Jobs that waited for another label start there, and planning continues.
        (claim,) = await claimed(target, free={"illumos": 1})
        assert claim.run_id == populated.waiting
        assert (await planning_task(target)).run_id == populated.planning
        # The tick whose forge was unavailable fires there, once its pause is over.
        clock.forward(await target.schedule_store.pause_seconds() or 0.0)
        settled = await target.schedule_store.fired(await claimed_tick(target.schedule_store), COMMIT)
        assert settled is not None
        assert settled.state is TickState.FIRED


async def keys(store: JobStore, run_id: str) -> list[AttemptKey]:
    return [
        AttemptKey(job_id=view.job_id, number=view.attempt)
        for view in await store.jobs(run_id=run_id, limit=10)
        if view.state is JobState.RUNNING
    ]


async def test_every_table_of_one_schema_has_its_counterpart_in_the_other(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    moved = await move_it(file, postgresql_database, clock)
    with closing(sqlite3.connect(file)) as connection:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        here = {name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} for name in names}
    there: dict[str, set[str]] = {}
    for row in postgresql_database.query(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND is_generated = 'NEVER'"
    ):
        there.setdefault(row["table_name"], set()).add(row["column_name"])
    # A table of its own for the sake of older orchestrators, a column there.
    here["log_chunks"] |= here.pop("log_marks")
    assert moved.rows.keys() == here.keys() - moving.NOT_MOVED == there.keys() - moving.NOT_MOVED
    # A run and its request are divided in another way, and the order of arrival is in the ids.
    for columns in (here, there):
        columns["runs"] |= columns.pop("requests")
        columns["runs"].discard("age")
        columns["jobs"].discard("age")
    assert here == there


async def test_the_source_stays_as_it_was(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    async with open_store(f"sqlite:///{file}", clock=clock) as source:
        before = await everything(source)
    await move_it(file, postgresql_database, clock)
    async with open_store(f"sqlite:///{file}", clock=clock) as source:
        assert await everything(source) == before


async def test_progress_is_reported_in_batches(
    file: Path,
    populated: PopulatedStore,
    clock: ManualClock,
    postgresql_database: ScratchDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, "BATCH_ROWS", 4)
    reported: list[tuple[str, int, int]] = []
    moved = await move(
        file,
        postgresql_database.url,
        progress=lambda *step: reported.append(step),
        clock=lambda: clock() + LATER,
    )
    runs = [step for step in reported if step[0] == "runs"]
    assert runs == [("runs", 4, 7), ("runs", 7, 7)]
    assert moved.rows["runs"] == 7


async def test_a_source_that_is_in_use_is_refused_unless_that_is_known(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    with pytest.raises(MoveRefused, match=r"worker .* was at work"):
        await move(file, postgresql_database.url, clock=clock)
    assert (await check(postgresql_database.url)).counts["runs"] == 0
    await move(file, postgresql_database.url, clock=clock, in_use=True)


async def test_a_target_with_anything_in_it_is_refused(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    await move_it(file, postgresql_database, clock)
    with pytest.raises(MoveRefused, match="not empty"):
        await move_it(file, postgresql_database, clock)
    assert (await check(postgresql_database.url)).well


class Interrupted(Exception):
    """A power failure."""


async def test_after_an_interruption_it_can_be_begun_again(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    def interrupt(table: str, _done: int, _total: int) -> None:
        if table == "runs":
            raise Interrupted

    with pytest.raises(Interrupted):
        await move(file, postgresql_database.url, progress=interrupt, clock=lambda: clock() + LATER)
    assert set((await check(postgresql_database.url)).counts.values()) == {0}
    moved = await move_it(file, postgresql_database, clock)
    assert moved.rows["runs"] == len(populated.runs)


async def test_a_server_that_dies_in_the_middle_leaves_nothing_behind(
    file: Path, populated: PopulatedStore, clock: ManualClock, own_postgresql_database: ScratchDatabase
) -> None:
    def kill(table: str, _done: int, _total: int) -> None:
        if table == "runs":
            own_postgresql_database.server.kill()

    with pytest.raises(StoreUnavailable, match="postgresql://"):
        await move(file, own_postgresql_database.url, progress=kill, clock=lambda: clock() + LATER)
    own_postgresql_database.server.start()
    assert set((await check(own_postgresql_database.url)).counts.values()) == {0}
    assert (await move_it(file, own_postgresql_database, clock)).rows["runs"] == len(populated.runs)


async def test_the_source_cannot_be_written_to_meanwhile(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    refused: list[str] = []

    def write(table: str, _done: int, _total: int) -> None:
        with closing(sqlite3.connect(file, timeout=0.01)) as other:
            try:
                other.execute("DELETE FROM outbox")
            except sqlite3.OperationalError as error:
                refused.append(str(error))

    await move(file, postgresql_database.url, progress=write, clock=lambda: clock() + LATER)
    assert set(refused) == {"database is locked"}


async def test_a_name_that_postgresql_cannot_hold_arrives_readable(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET detail = 'a' || char(0) || 'b'")
    await move_it(file, postgresql_database, clock)
    rows = postgresql_database.query("SELECT DISTINCT detail FROM jobs")
    assert [row["detail"] for row in rows] == ["a\N{REPLACEMENT CHARACTER}b"]


async def test_rows_that_did_not_arrive_undo_the_move(
    file: Path,
    populated: PopulatedStore,
    clock: ManualClock,
    postgresql_database: ScratchDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = asyncpg.Connection.copy_records_to_table

    async def lossy(self: Any, table: str, *, columns: list[str], records: list[Any]) -> str:
        return await real(self, table, columns=columns, records=records[1:] if table == "jobs" else records)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", lossy)
    with pytest.raises(MoveRefused, match=r"rows for jobs, .* arrived; nothing was moved"):
        await move_it(file, postgresql_database, clock)
    assert set((await check(postgresql_database.url)).counts.values()) == {0}


async def test_what_cannot_be_moved_says_why(
    tmp_path: Path, file: Path, populated: PopulatedStore, postgresql_database: ScratchDatabase
) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, 'x', 0)")
    with pytest.raises(ConfigurationError, match="no such file"):
        await move(tmp_path / "none.db", postgresql_database.url)
    with pytest.raises(SchemaTooNew, match="9999"):
        await move(file, postgresql_database.url)
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at" * 10)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await move(tmp_path / "text", postgresql_database.url)
    with pytest.raises(ConfigurationError):
        await move(file, "postgresql://host:port/db")


async def test_what_is_to_start_later_starts_there_at_its_time(
    file: Path, populated: PopulatedStore, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    await move_it(file, postgresql_database, clock)
    async with open_store(postgresql_database.url, clock=clock) as target:
        run = await target.run(populated.delayed)
        assert run is not None
        assert (run.state, await target.delayed()) == (RunState.DELAYED, 1)
        pause = await target.planning_pause()
        assert pause is not None
        assert run.not_before is not None
        assert pause == pytest.approx(run.not_before - clock(), abs=0.01)
        assert (await target.demand(2 * 86_400.0)).delayed == {"illumos": 1}
        clock.forward(pause)
        assert populated.delayed in {task.run_id for task in await target.claim_planning("anew", 9)}
