"""A SQLite store of an older version is upgraded with all its contents."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from solstice_common.messages.states import JobState, RunState
from solstice_common.storage.migrations import migrate
from solstice_common.storage.sqlite import migrations_of
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.rows import encode_spec, key
from tests.builders import job, job_request
from tests.outbox_upgrade import BATCHES_VERSION, OLD_ROWS, check_outbox_after_upgrade
from tests.stores import FAILED, SUCCEEDED, WORKER, ManualClock, claimed, outbox_statuses

NOW = 1_800_000_000.0


def first_version(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    migrate(connection, path, migrations_of("solstice_orchestrator.store.schema.sqlite")[:1])
    return connection


def add_run(connection: sqlite3.Connection, run_id: str, state: str, sequence: int, repository: str) -> None:
    request = job_request(request_id=run_id, repo_full_name=repository)
    connection.execute(
        "INSERT INTO runs (run_id, request_key, repository, state, sequence, created_at) VALUES (?,?,?,?,?,?)",
        (run_id, key(request.request_id), repository, state, sequence, NOW - 100),
    )
    connection.execute(
        "INSERT INTO requests SELECT age, ? FROM runs WHERE run_id = ?", (request.encode(), run_id)
    )


def add_job(
    connection: sqlite3.Connection, job_id: str, run_id: str, position: int, state: str, **columns: object
) -> None:
    spec = job("true", name=job_id)
    values: dict[str, object] = {
        "job_id": job_id,
        "run_id": run_id,
        "position": position,
        "name": job_id,
        "runs_on": "linux",
        "priority": 2,
        "needs": json.dumps([]),
        "spec": encode_spec(spec),
        "state": state,
        "reason": "planned",
        "created_at": NOW - 50,
        **columns,
    }
    connection.execute(
        f"INSERT INTO jobs ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",  # noqa: S608  our own names
        tuple(values.values()),
    )


def id_of(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012d}"


async def test_work_in_hand_goes_on_after_the_upgrade_from_schema_1(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock(NOW)
    with closing(first_version(path)) as old:
        add_run(old, id_of(1), "running", 6, "lantern/harbour")
        add_job(old, id_of(10), id_of(1), 0, "succeeded", finished_at=NOW - 5, attempt=1, reason="completed")
        add_job(
            old,
            id_of(11),
            id_of(1),
            1,
            "running",
            attempt=2,
            worker_id=WORKER,
            lease_until=NOW + 30,
            started_at=NOW - 20,
            reason="claimed",
        )
        add_job(old, id_of(12), id_of(1), 2, "waiting")
        add_job(old, id_of(13), id_of(1), 3, "waiting")
        add_job(old, id_of(14), id_of(1), 4, "blocked", needs=json.dumps([id_of(11)]))
        add_run(old, id_of(2), "waiting", 3, "lantern/pier")
        add_job(old, id_of(20), id_of(2), 0, "waiting")
        ended = (id_of(11), 1, "worker-b", "errored", "agent_lost", NOW - 40, NOW - 30, "held by worker-b")
        old.execute(
            "INSERT INTO attempts (job_id, number, worker_id, state, reason, started_at, finished_at, detail)"
            " VALUES (?,?,?,?,?,?,?,?)",
            ended,
        )
        old.execute(
            "INSERT INTO attempts (job_id, number, worker_id, state, reason, started_at) VALUES (?,?,?,?,?,?)",
            (id_of(11), 2, WORKER, "running", "claimed", NOW - 20),
        )
    async with open_store(f"sqlite:///{path}", clock=clock) as store:
        attempts = await store.attempts(id_of(11))
        assert [(each.number, each.state, each.finished_at is None) for each in attempts] == [
            (1, JobState.ERRORED, False),
            (2, JobState.RUNNING, True),
        ]
        # The repositories take turns, though one was there first with both of its jobs.
        claims = await claimed(store, worker="worker-b", free={"linux": 3})
        assert [claim.key.job_id for claim in claims] == [id_of(12), id_of(20), id_of(13)]
        assert await store.finish(AttemptKey(job_id=id_of(11), number=2), SUCCEEDED)
        for claim in [*claims, *await claimed(store)]:
            assert await store.finish(claim.key, FAILED)
        first, second = await store.run(id_of(1)), await store.run(id_of(2))
        assert first is not None
        assert second is not None
        assert (first.state, second.state) == (RunState.FAILED, RunState.FAILED)
        last = await store.attempts(id_of(11))
        assert (last[-1].state, last[-1].reason, last[-1].started_at) == (
            JobState.SUCCEEDED,
            Reason.COMPLETED,
            NOW - 20,
        )
        # Readers keep the highest sequence of a context: no sequence may start again below an earlier one.
        assert all(
            status.sequence > (6 if status.run_id == id_of(1) else 3)
            for status in await outbox_statuses(store)
        )


async def test_messages_in_the_outbox_are_published_after_the_upgrade_before_newer_ones(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "store.db", ManualClock(NOW)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        steps = migrations_of("solstice_orchestrator.store.schema.sqlite")
        migrate(old, path, [step for step in steps if step.version < BATCHES_VERSION])
        for row in OLD_ROWS:
            old.execute("INSERT INTO outbox (kind, request_id, body, headers) VALUES (?,?,?,?)", row)
    async with open_store(f"sqlite:///{path}", clock=clock) as store:
        await check_outbox_after_upgrade(store)


async def test_what_ran_before_the_upgrade_counts_for_its_owner(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock(NOW)
    with closing(first_version(path)) as old:
        add_run(old, id_of(1), "running", 2, "lantern/harbour")
        lease = {"attempt": 1, "worker_id": WORKER, "lease_until": NOW + 30, "reason": "claimed"}
        add_job(old, id_of(10), id_of(1), 0, "running", started_at=NOW - 20, **lease)
        add_run(old, id_of(2), "waiting", 1, "lantern/pier")
        add_job(old, id_of(20), id_of(2), 0, "waiting")
        add_run(old, id_of(3), "waiting", 1, "reef/tide")
        add_job(old, id_of(30), id_of(3), 0, "waiting")
    quotas = Quotas(slots=Caps(of={"lantern": 1}))
    async with open_store(f"sqlite:///{path}", clock=clock, quotas=quotas) as store:
        assert [claim.key.job_id for claim in await claimed(store, worker="worker-b")] == [id_of(30)]
        assert await store.finish(AttemptKey(job_id=id_of(10), number=1), SUCCEEDED)
        assert [claim.key.job_id for claim in await claimed(store, worker="worker-b")] == [id_of(20)]


async def test_a_cancel_requested_before_the_upgrade_still_reaches_the_worker(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock(NOW)
    with closing(first_version(path)) as old:
        add_run(old, id_of(1), "running", 2, "lantern/harbour")
        lease = {"attempt": 1, "worker_id": WORKER, "lease_until": NOW + 30, "reason": "claimed"}
        add_job(old, id_of(10), id_of(1), 0, "running", cancel_asked=1, started_at=NOW, **lease)
        add_job(old, id_of(11), id_of(1), 1, "running", started_at=NOW, **lease)
    attempts = [AttemptKey(job_id=id_of(number), number=1) for number in (10, 11)]
    async with open_store(f"sqlite:///{path}", clock=clock) as store:
        renewal = await store.renew(WORKER, attempts)
    assert renewal.cancelled == {attempts[0]}
