"""Orchestrators are killed and frozen under two thousand jobs: each ends once, without leftovers."""

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
from tests.chaos.cluster import PROCESS_LABEL, Cluster, Key, lost_attempts, open_cluster
from tests.chaos.recording_orchestrator import SIMULATED_LABEL
from tests.polling import wait_until_true
from tests.servers.orchestrator import OrchestratorProcess
from tests.servers.postgresql_server import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost

NAMES = ("north", "east", "west")
SKEW_HOURS = {"north": -2.0, "east": 3.0}
"""Clocks need not agree."""
RUNS, SIMULATED_JOBS, PROCESS_JOBS = 80, 24, 1
SLOTS = {SIMULATED_LABEL: 16, PROCESS_LABEL: 2}
Ask = Callable[[], Awaitable[None]]
BETWEEN = 100
"""Jobs that are done between one fault and the next."""
LOST_REASONS = {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}
SETTINGS = {
    "CAPACITY_MAP": ",".join(f"{label}={slots}" for label, slots in SLOTS.items()),
    "LEASE_SECONDS": "6",
    "RENEW_SECONDS": "1",
    "RESCUE_SECONDS": "0.5",
    "RETRY_BASE_SECONDS": "0.1",
}


@pytest.fixture
async def cluster(
    postgresql_database: ScratchDatabase, rabbitmq_vhost: Vhost, tmp_path: Path
) -> AsyncIterator[Cluster]:
    async with open_cluster(
        tmp_path,
        database_url=postgresql_database.url,
        amqp_url=rabbitmq_vhost.url,
        skew_hours=SKEW_HOURS,
        **SETTINGS,
    ) as opened:
        yield opened


@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_each_of_two_thousand_jobs_succeeds_once_although_orchestrators_are_killed_and_frozen(
    cluster: Cluster, postgresql_database: ScratchDatabase
) -> None:
    north, east, west = [await cluster.start(name) for name in NAMES]
    repository, commit = cluster.repository("harbour", simulated=SIMULATED_JOBS, processes=PROCESS_JOBS)

    async def ask() -> None:
        """Publish a fifth of all requests, so that the next fault finds work."""
        await cluster.publish_requests(repository, commit, RUNS // 5)

    lost = await kill_while_every_slot_is_in_use(cluster, north, ask)
    north = await cluster.start(NAMES[0])
    await recovery(cluster, lost)
    lost |= await freeze_while_every_slot_is_in_use(cluster, east, ask)
    await recovery(cluster, lost)
    lost |= await kill_in_full_flight(cluster, east, ask)
    east = await cluster.start(NAMES[1])
    await recovery(cluster, lost)
    lost |= await kill_in_full_flight(cluster, west, ask)
    west = await cluster.start(NAMES[2])
    await recovery(cluster, lost)
    lost |= await freeze_in_full_flight(cluster, north, ask)

    await wait_until_true("every run has ended", lambda: cluster.have_ended(RUNS))
    jobs = await cluster.jobs()
    attempts = await cluster.attempts(jobs)
    each_job_succeeded_once(jobs, attempts, lost)
    records_agree_with_the_store(cluster, jobs, attempts)
    await every_slot_can_be_used_again(cluster, [north, east, west])
    for worker in (north, east, west):
        worker.terminate()
    for worker in (north, east, west):
        assert await asyncio.to_thread(worker.ended) == 0, worker.events[-5:]
    assert postgresql_database.query("SELECT count(*) FROM outbox")[0][0] == 0
    each_status_history_is_complete(await cluster.take_statuses(), await cluster.jobs())
    assert set((await cluster.depths()).values()) == {0}


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_ten_jobs_go_to_exactly_one_of_three_workers_each(cluster: Cluster) -> None:
    workers = [await cluster.start(name) for name in NAMES]
    repository, commit = cluster.repository("harbour", simulated=0, processes=1)
    await cluster.publish_requests(repository, commit, 10)
    await wait_until_true("every run has ended", lambda: cluster.have_ended(10))
    jobs = await cluster.jobs()
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.SUCCEEDED, 1)] * 10
    claims = [
        (event["job_id"], worker.worker_id)
        for worker in workers
        for event in worker.events
        if event.get("event") == "job.claimed"
    ]
    assert sorted(claims) == sorted((job.job_id, job.worker_id) for job in jobs)
    assert Counter(record.event for record in cluster.gated_jobs.records()) == {"begun": 10, "done": 10}


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_clocks_that_are_hours_apart_take_no_job_from_a_living_worker_and_keep_none_for_a_dead_one(
    cluster: Cluster,
) -> None:
    workers = [await cluster.start(name) for name in NAMES]
    repository, commit = cluster.repository("harbour", simulated=3 * SLOTS[SIMULATED_LABEL], processes=0)
    cluster.gated_jobs.close_gate()
    await cluster.publish_requests(repository, commit, 1)

    async def all_wait() -> bool:
        return len(cluster.gated_jobs.attempts("waits")) == 3 * SLOTS[SIMULATED_LABEL]

    await wait_until_true("every job waits at the gate", all_wait)
    begun = {record.key: record.at for record in cluster.gated_jobs.records("begun")}

    async def has_outlived_two_leases() -> bool:
        last = {record.key: record.at for record in cluster.gated_jobs.records()}
        return all(last[key] > at + 2 * float(SETTINGS["LEASE_SECONDS"]) for key, at in begun.items())

    await wait_until_true("every attempt is older than two leases", has_outlived_two_leases)
    assert not any(event.get("event") == "attempts.rescued" for each in workers for event in each.events)
    victim = workers[0]
    attempts_at_worker = await cluster.running_attempts(victim)
    victim.kill()
    assert attempts_at_worker
    await wait_until_true(
        "all that it held is taken away", lambda: cluster.attempts_ended(attempts_at_worker)
    )
    cluster.gated_jobs.open_gate()
    await wait_until_true("the run has ended", lambda: cluster.have_ended(1))
    attempts = await cluster.attempts(await cluster.jobs())
    for job_id, tries in attempts.items():
        lost = [Reason.AGENT_LOST] * ((job_id, 1) in attempts_at_worker)
        assert [each.reason for each in tries] == [*lost, Reason.COMPLETED]


# -- faults
# -----------------------------------------------------------------------------------------------------------


async def progress(cluster: Cluster) -> None:
    """Let some jobs come to their end."""
    before = await cluster.done_count()

    async def moved() -> bool:
        return await cluster.done_count() >= before + BETWEEN

    await wait_until_true("jobs come to their end", moved)


async def recovery(cluster: Cluster, lost: set[Key]) -> None:
    """Let every interrupted job end; one that is interrupted three times rightly ends as errored."""

    async def have_ended() -> bool:
        views = [await cluster.store.job(job_id) for job_id, _ in lost]
        return all(view is not None and view.state.final for view in views)

    await wait_until_true("jobs that were hit have ended", have_ended)


async def fill(cluster: Cluster, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    """Shut the gate, and wait until an attempt waits there for each slot."""
    cluster.gated_jobs.close_gate()
    await ask()

    async def is_full() -> bool:
        attempts_at_worker = await cluster.running_attempts(worker)
        return len(attempts_at_worker) == sum(
            SLOTS.values()
        ) and attempts_at_worker <= cluster.gated_jobs.attempts("waits")

    await wait_until_true("every slot of it is in use", is_full)
    return await cluster.running_attempts(worker)


async def kill_while_every_slot_is_in_use(
    cluster: Cluster, worker: OrchestratorProcess, ask: Ask
) -> set[Key]:
    attempts_at_worker = await fill(cluster, worker, ask)
    below = descendants(worker.process.pid)
    worker.kill()
    assert below

    async def are_dead() -> bool:
        return not any(is_alive(pid) for pid in below)

    await wait_until_true("what ran below a killed orchestrator is dead", are_dead)
    cluster.gated_jobs.open_gate()
    return attempts_at_worker


async def kill_in_full_flight(cluster: Cluster, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    await ask()
    await progress(cluster)
    worker.kill()
    attempts_at_worker = await cluster.running_attempts(worker)
    assert attempts_at_worker
    return attempts_at_worker


async def freeze_while_every_slot_is_in_use(
    cluster: Cluster, worker: OrchestratorProcess, ask: Ask
) -> set[Key]:
    """Freeze the worker until its leases have run out, with jobs at the gate."""
    attempts_at_worker = await fill(cluster, worker, ask)
    jobs = processes_of_jobs(worker)
    assert jobs
    worker.freeze()
    await wait_until_true(
        "all that it held is taken away", lambda: cluster.attempts_ended(attempts_at_worker)
    )
    worker.thaw()

    async def knows() -> bool:
        return attempts_at_worker <= lost_attempts(worker)

    async def are_dead() -> bool:
        return not any(is_alive(pid) for pid in jobs)

    await wait_until_true("it knows that it lost everything", knows)
    await wait_until_true("its jobs are dead", are_dead)
    cluster.gated_jobs.open_gate()
    return attempts_at_worker


async def freeze_in_full_flight(cluster: Cluster, worker: OrchestratorProcess, ask: Ask) -> set[Key]:
    """Freeze the worker; it wakes up during attempts that another worker has repeated."""
    await ask()
    await progress(cluster)
    worker.freeze()
    attempts_at_worker = await cluster.running_attempts(worker)
    assert attempts_at_worker
    # Its last claim is unknown to it when the answer comes after its timeout.
    begun = attempts_at_worker & {record.key for record in cluster.gated_jobs.records()}
    await wait_until_true(
        "all that it held is taken away", lambda: cluster.attempts_ended(attempts_at_worker)
    )
    worker.thaw()

    async def knows() -> bool:
        return begun <= lost_attempts(worker)

    await wait_until_true("it knows that it lost all that it had begun", knows)
    return attempts_at_worker


def processes_of_jobs(worker: OrchestratorProcess) -> set[int]:
    """The supervisors of jobs that run, and all below them.

    The process from which supervisors are forked has none below it, and stays.
    """
    below = {pid: descendants(pid) for pid in descendants(worker.process.pid)}
    return {pid for supervisor, steps in below.items() if steps for pid in (supervisor, *steps)}


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


# -- what must hold --------------------------------------------------------------------------------------------------


def each_job_succeeded_once(
    jobs: Sequence[JobView], attempts: Mapping[str, Sequence[AttemptView]], lost: set[Key]
) -> None:
    """The last attempt succeeded, earlier ones lost their lease, and all interrupted ones are there."""
    assert len(jobs) == RUNS * (SIMULATED_JOBS + PROCESS_JOBS)
    assert Counter((job.state, job.reason) for job in jobs) == {
        (JobState.SUCCEEDED, Reason.COMPLETED): len(jobs)
    }
    without_result = dict[Key, Reason]()
    for job in jobs:
        *others, last = attempts[job.job_id]
        assert (last.state, last.number) == (JobState.SUCCEEDED, job.attempt)
        assert [each.number for each in attempts[job.job_id]] == list(range(1, job.attempt + 1))
        for other in others:
            assert other.reason in LOST_REASONS, other
            without_result[job.job_id, other.number] = other.reason
    assert {key: without_result.get(key) for key in lost} == dict.fromkeys(lost, Reason.AGENT_LOST)


def records_agree_with_the_store(
    cluster: Cluster, jobs: Sequence[JobView], attempts: Mapping[str, Sequence[AttemptView]]
) -> None:
    """Each attempt began and succeeded at most once, and wrote nothing after its end."""
    records = cluster.gated_jobs.records()
    known = {(job_id, each.number) for job_id, tries in attempts.items() for each in tries}
    begun = Counter(record.key for record in records if record.event == "begun")
    done = Counter(record.key for record in records if record.event == "done")
    assert set(begun.values()) == {1}
    assert set(begun) <= known
    assert set(done.values()) == {1}
    assert {(job.job_id, job.attempt) for job in jobs} <= set(done)
    lost_at = cluster.lost_at()
    assert lost_at
    late = [record for record in records if record.key in lost_at and record.at > lost_at[record.key]]
    assert late == []


async def every_slot_can_be_used_again(cluster: Cluster, workers: Sequence[OrchestratorProcess]) -> None:
    """Each worker runs as many jobs as it has slots, and no more."""
    everywhere = {label: slots * len(workers) for label, slots in SLOTS.items()}
    repository, commit = cluster.repository(
        "slots", simulated=everywhere[SIMULATED_LABEL] + 2, processes=everywhere[PROCESS_LABEL] + 2
    )
    cluster.gated_jobs.close_gate()
    await cluster.publish_requests(repository, commit, 1)

    async def all_are_in_use() -> bool:
        running = await cluster.store.jobs(state=JobState.RUNNING, limit=1000)
        used = Counter((job.worker_id, job.runs_on) for job in running)
        return used == {
            (worker.worker_id, label): slots for worker in workers for label, slots in SLOTS.items()
        }

    await wait_until_true("every slot is in use", all_are_in_use)
    waiting = await cluster.store.jobs(state=JobState.WAITING, limit=1000)
    assert Counter(job.runs_on for job in waiting) == {SIMULATED_LABEL: 2, PROCESS_LABEL: 2}
    cluster.gated_jobs.open_gate()
    await wait_until_true("the last run has ended", lambda: cluster.have_ended(RUNS + 1))
    assert {run.state for run in await cluster.runs()} == {RunState.SUCCEEDED}


def each_status_history_is_complete(reported: Sequence[JobStatusV1], jobs: Sequence[JobView]) -> None:
    """The statuses of every run and job are complete and in order.

    Where the broker's confirm got lost, the same status comes again.
    """
    about = defaultdict[tuple[str, str | None], dict[str, JobStatusV1]](dict)
    for status in reported:
        about[status.run_id, status.job_id].setdefault(status.status_id, status)
    assert set(about) == {(job.run_id, job.job_id) for job in jobs} | {(job.run_id, None) for job in jobs}
    for statuses in about.values():
        numbers = [status.sequence for status in statuses.values()]
        assert numbers == sorted(set(numbers))
        states = [status.state for status in statuses.values()]
        assert states.count("succeeded") == 1
        assert states[-1] == "succeeded"
