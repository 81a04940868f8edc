"""Orchestrators are killed and frozen while two thousand jobs run: each ends once, and nothing is left behind."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from solstice_common.messages import JobStatusV1
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.processes.supervisor import descendants
from solstice_orchestrator.store.views import AttemptView, JobView
from tests.chaos.ground import Ground, Key, noticed, open_ground
from tests.chaos.marks import BENCH
from tests.chaos.scribe import DESK
from tests.patience import becomes_true
from tests.servers.orchestrator import OrchestratorProcess
from tests.servers.postgresql_server import PostgreSQLDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost

NAMES = ("north", "east", "west")
SKEW_HOURS = {"north": -2.0, "east": 3.0}
"""Clocks need not agree."""
RUNS, DESK_JOBS, BENCH_JOBS = 80, 24, 1
SLOTS = {DESK: 16, BENCH: 2}
Ask = Callable[[], Awaitable[None]]
BETWEEN = 100
"""Jobs that are done between one blow and the next."""
TAKEN_AWAY = {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}
SETTINGS = {
    "CAPACITY_MAP": ",".join(f"{label}={slots}" for label, slots in SLOTS.items()),
    "LEASE_SECONDS": "6",
    "RENEW_SECONDS": "1",
    "RESCUE_SECONDS": "0.5",
    "RETRY_BASE_SECONDS": "0.1",
}


@pytest.fixture
async def ground(
    postgresql_database: PostgreSQLDatabase, rabbitmq_vhost: Vhost, tmp_path: Path
) -> AsyncIterator[Ground]:
    async with open_ground(
        tmp_path,
        database_url=postgresql_database.url,
        amqp_url=rabbitmq_vhost.url,
        skew_hours=SKEW_HOURS,
        **SETTINGS,
    ) as opened:
        yield opened


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_each_of_two_thousand_jobs_succeeds_once_whoever_is_killed_or_frozen_meanwhile(
    ground: Ground, postgresql_database: PostgreSQLDatabase
) -> None:
    north, east, west = [await ground.start(name) for name in NAMES]
    repository, commit = ground.marks.repository("harbour", desk=DESK_JOBS, bench=BENCH_JOBS)

    async def ask() -> None:
        """For a fifth of all, so that whatever comes next comes while there is work."""
        await ground.ask(repository, commit, RUNS // 5)

    lost = await kill_while_every_slot_is_in_use(ground, north, ask)
    north = await ground.start(NAMES[0])
    await recovery(ground, lost)
    lost |= await freeze_while_every_slot_is_in_use(ground, east, ask)
    await recovery(ground, lost)
    lost |= await kill_in_full_flight(ground, east, ask)
    east = await ground.start(NAMES[1])
    await recovery(ground, lost)
    lost |= await kill_in_full_flight(ground, west, ask)
    west = await ground.start(NAMES[2])
    await recovery(ground, lost)
    lost |= await freeze_in_full_flight(ground, north, ask)

    await becomes_true("every run has ended", lambda: ground.have_ended(RUNS))
    jobs = await ground.jobs()
    attempts = await ground.attempts(jobs)
    each_job_succeeded_once(jobs, attempts, lost)
    marks_agree_with_the_store(ground, jobs, attempts)
    await every_slot_can_be_used_again(ground, [north, east, west])
    for worker in (north, east, west):
        worker.terminate()
    for worker in (north, east, west):
        assert await asyncio.to_thread(worker.ended) == 0, worker.events[-5:]
    assert postgresql_database.query("SELECT count(*) FROM outbox")[0][0] == 0
    each_was_told_to_its_end(await ground.told(), await ground.jobs())
    assert set((await ground.depths()).values()) == {0}


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_ten_jobs_go_to_exactly_one_of_three_workers_each(ground: Ground) -> None:
    workers = [await ground.start(name) for name in NAMES]
    repository, commit = ground.marks.repository("harbour", desk=0, bench=1)
    await ground.ask(repository, commit, 10)
    await becomes_true("every run has ended", lambda: ground.have_ended(10))
    jobs = await ground.jobs()
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.SUCCEEDED, 1)] * 10
    claims = [
        (event["job_id"], worker.worker_id)
        for worker in workers
        for event in worker.events
        if event.get("event") == "job.claimed"
    ]
    assert sorted(claims) == sorted((job.job_id, job.worker_id) for job in jobs)
    assert Counter(mark.word for mark in ground.marks.all()) == {"begun": 10, "done": 10}


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_clocks_that_are_hours_apart_take_no_job_from_a_living_worker_and_keep_none_for_a_dead_one(
    ground: Ground,
) -> None:
    workers = [await ground.start(name) for name in NAMES]
    repository, commit = ground.marks.repository("harbour", desk=3 * SLOTS[DESK], bench=0)
    ground.marks.shut()
    await ground.ask(repository, commit, 1)

    async def all_wait() -> bool:
        return len({mark.key for mark in ground.marks.all() if mark.word == "waits"}) == 3 * SLOTS[DESK]

    await becomes_true("every job waits at the gate", all_wait)
    begun = {mark.key: mark.at for mark in ground.marks.all() if mark.word == "begun"}

    async def has_outlived_two_leases() -> bool:
        last = {mark.key: mark.at for mark in ground.marks.all()}
        return all(last[key] > at + 2 * float(SETTINGS["LEASE_SECONDS"]) for key, at in begun.items())

    await becomes_true("every attempt is older than two leases", has_outlived_two_leases)
    assert not any(event.get("event") == "attempts.rescued" for each in workers for event in each.events)
    victim = workers[0]
    held = await ground.held(victim)
    victim.kill()
    assert held
    await becomes_true("all that it held is taken away", lambda: ground.are_over(held))
    ground.marks.open()
    await becomes_true("the run has ended", lambda: ground.have_ended(1))
    attempts = await ground.attempts(await ground.jobs())
    for job_id, tries in attempts.items():
        lost = [Reason.AGENT_LOST] * ((job_id, 1) in held)
        assert [each.reason for each in tries] == [*lost, Reason.COMPLETED]


# -- blows -----------------------------------------------------------------------------------------------------------


async def progress(ground: Ground) -> None:
    """Let some jobs come to their end."""
    before = await ground.done()

    async def moved() -> bool:
        return await ground.done() >= before + BETWEEN

    await becomes_true("jobs come to their end", moved)


async def recovery(ground: Ground, lost: set[Key]) -> None:
    """Let every job that was hit come to its end: one that is hit three times is given up, as it should be."""

    async def have_ended() -> bool:
        views = [await ground.store.job(job_id) for job_id, _ in lost]
        return all(view is not None and view.state.final for view in views)

    await becomes_true("jobs that were hit have ended", have_ended)


async def fill(ground: Ground, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    """Shut the gate, and wait until each slot of the worker holds an attempt that stands before it."""
    ground.marks.shut()
    await ask()

    async def is_full() -> bool:
        held = await ground.held(worker)
        waiting = {mark.key for mark in ground.marks.all() if mark.word == "waits"}
        return len(held) == sum(SLOTS.values()) and held <= waiting

    await becomes_true("every slot of it is in use", is_full)
    return await ground.held(worker)


async def kill_while_every_slot_is_in_use(ground: Ground, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    held = await fill(ground, worker, ask)
    below = descendants(worker.process.pid)
    worker.kill()
    assert below

    async def are_dead() -> bool:
        return not any(is_alive(pid) for pid in below)

    await becomes_true("what ran below a killed orchestrator is dead", are_dead)
    ground.marks.open()
    return held


async def kill_in_full_flight(ground: Ground, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    await ask()
    await progress(ground)
    worker.kill()
    held = await ground.held(worker)
    assert held
    return held


async def freeze_while_every_slot_is_in_use(
    ground: Ground, worker: OrchestratorProcess, ask: Ask
) -> set[Key]:
    """It wakes up with everything taken away from it, and what it still runs before a shut gate."""
    held = await fill(ground, worker, ask)
    below = descendants(worker.process.pid)
    worker.freeze()
    await becomes_true("all that it held is taken away", lambda: ground.are_over(held))
    worker.thaw()

    async def knows() -> bool:
        return held <= noticed(worker)

    async def are_dead() -> bool:
        return not any(is_alive(pid) for pid in below)

    await becomes_true("it knows that it lost everything", knows)
    await becomes_true("what ran below it is dead", are_dead)
    ground.marks.open()
    return held


async def freeze_in_full_flight(ground: Ground, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    """It wakes up in the middle of attempts that somebody else has made again meanwhile."""
    await ask()
    await progress(ground)
    worker.freeze()
    held = await ground.held(worker)
    assert held
    # It never heard of what it was given as it froze, if the answer comes too late for its patience.
    begun = held & {mark.key for mark in ground.marks.all()}
    await becomes_true("all that it held is taken away", lambda: ground.are_over(held))
    worker.thaw()

    async def knows() -> bool:
        return begun <= noticed(worker)

    await becomes_true("it knows that it lost all that it had begun", knows)
    return held


def is_alive(pid: int) -> bool:
    """Whether the process is there and more than a corpse that nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


# -- what must hold --------------------------------------------------------------------------------------------------


def each_job_succeeded_once(
    jobs: Sequence[JobView], attempts: Mapping[str, Sequence[AttemptView]], lost: set[Key]
) -> None:
    """By its last attempt; those before it were taken away, and every one that was hit is among them."""
    assert len(jobs) == RUNS * (DESK_JOBS + BENCH_JOBS)
    assert Counter((job.state, job.reason) for job in jobs) == {
        (JobState.SUCCEEDED, Reason.COMPLETED): len(jobs)
    }
    in_vain = dict[Key, Reason]()
    for job in jobs:
        *others, last = attempts[job.job_id]
        assert (last.state, last.number) == (JobState.SUCCEEDED, job.attempt)
        assert [each.number for each in attempts[job.job_id]] == list(range(1, job.attempt + 1))
        for other in others:
            assert other.reason in TAKEN_AWAY, other
            in_vain[job.job_id, other.number] = other.reason
    assert {key: in_vain.get(key) for key in lost} == dict.fromkeys(lost, Reason.AGENT_LOST)


def marks_agree_with_the_store(
    ground: Ground, jobs: Sequence[JobView], attempts: Mapping[str, Sequence[AttemptView]]
) -> None:
    """Each attempt began at most once, each successful one was done once, and none left a mark after its end was known."""
    marks = ground.marks.all()
    known = {(job_id, each.number) for job_id, tries in attempts.items() for each in tries}
    begun = Counter(mark.key for mark in marks if mark.word == "begun")
    done = Counter(mark.key for mark in marks if mark.word == "done")
    assert set(begun.values()) == {1}
    assert set(begun) <= known
    assert set(done.values()) == {1}
    assert {(job.job_id, job.attempt) for job in jobs} <= set(done)
    let_go = ground.let_go()
    assert let_go
    late = [mark for mark in marks if mark.key in let_go and mark.at > let_go[mark.key]]
    assert late == []


async def every_slot_can_be_used_again(ground: Ground, workers: Sequence[OrchestratorProcess]) -> None:
    """As many jobs as there are slots run at once, on each worker its own number, and not one more."""
    everywhere = {label: slots * len(workers) for label, slots in SLOTS.items()}
    repository, commit = ground.marks.repository(
        "slots", desk=everywhere[DESK] + 2, bench=everywhere[BENCH] + 2
    )
    ground.marks.shut()
    await ground.ask(repository, commit, 1)

    async def all_are_in_use() -> bool:
        running = await ground.store.jobs(state=JobState.RUNNING, limit=1000)
        used = Counter((job.worker_id, job.runs_on) for job in running)
        return used == {
            (worker.worker_id, label): slots for worker in workers for label, slots in SLOTS.items()
        }

    await becomes_true("every slot is in use", all_are_in_use)
    waiting = await ground.store.jobs(state=JobState.WAITING, limit=1000)
    assert Counter(job.runs_on for job in waiting) == {DESK: 2, BENCH: 2}
    ground.marks.open()
    await becomes_true("the last run has ended", lambda: ground.have_ended(RUNS + 1))
    assert {run.state for run in await ground.runs()} == {RunState.SUCCEEDED}


def each_was_told_to_its_end(told: Sequence[JobStatusV1], jobs: Sequence[JobView]) -> None:
    """Of every run and job, in order; a copy, where the broker's answer got lost, is the same status again."""
    about = defaultdict[tuple[str, str | None], dict[str, JobStatusV1]](dict)
    for status in told:
        about[status.run_id, status.job_id].setdefault(status.status_id, status)
    assert set(about) == {(job.run_id, job.job_id) for job in jobs} | {(job.run_id, None) for job in jobs}
    for statuses in about.values():
        numbers = [status.sequence for status in statuses.values()]
        assert numbers == sorted(set(numbers))
        states = [status.state for status in statuses.values()]
        assert states.count("succeeded") == 1
        assert states[-1] == "succeeded"
