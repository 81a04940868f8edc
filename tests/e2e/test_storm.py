"""A storm of webhooks during restarts and kills: nothing accepted is lost or doubled."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from solstice_common.messages import JobStatusV1, Source
from solstice_common.messages.states import JobState, RunState
from solstice_common.topology import STATUSES
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.statuses import RUN_CONTEXT
from solstice_orchestrator.processes.supervisor import descendants, process_ids
from solstice_orchestrator.store.views import AttemptView, JobView, RunView
from tests.e2e.deployment import Deployment, open_deployment
from tests.e2e.webhook_calls import Answer, Sender, WebhookCall, push, secrets, with_copies
from tests.gated_jobs import WORK, GatedJobs
from tests.polling import wait_until_true
from tests.repositories import Repository
from tests.servers.forge_integration import ForgeProcess
from tests.servers.orchestrator import OrchestratorProcess
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.servers.rabbitmq import DEFAULT, Vhost

PUSHES = 30
"""Of each forge."""
FEW = 3
SETTINGS = {"CAPACITY_MAP": "linux=3", "LEASE_SECONDS": "8", "DRAIN_SECONDS": "60"}
"""A lease is longer than any delay of an orchestrator on a busy machine."""
ONE_JOB = f'job "build" {{ step "work" run="{WORK}"; }}'
TWO_JOBS = ONE_JOB + f'\njob "test" {{ needs "build"; step "work" run="{WORK}"; }}'
WORKFLOWS = {
    Source.GITHUB: ONE_JOB,
    Source.FORGEJO: ONE_JOB,
    Source.GITEA: ONE_JOB,
    Source.GITLAB: TWO_JOBS,
}


def calls_for(gated_jobs: GatedJobs) -> list[WebhookCall]:
    """Pushes of real commits of four repositories, one forge after the other, with copies."""
    made: Mapping[Source, tuple[Repository, Sequence[str]]] = {
        source: gated_jobs.repository(source.value, {".solstice/workflow.kdl": workflow}, commits=PUSHES)
        for source, workflow in WORKFLOWS.items()
    }
    now = time.time()
    pushes = chain.from_iterable(
        (
            push(source, repository.url, commits[number], now=now)
            for source, (repository, commits) in made.items()
        )
        for number in range(PUSHES)
    )
    urls = {source: repository.url for source, (repository, _) in made.items()}
    return with_copies(list(pushes), urls, now=now)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def processes_in(directory: Path) -> list[int]:
    """All processes whose environment names a place in `directory`.

    Every process of a job does.
    """
    mark = f"={directory}/".encode()
    found = []
    for pid in process_ids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        # The environment of the orchestrators has the directory itself, without anything below it.
        if mark in environment and is_alive(pid):
            found.append(pid)
    return found


@pytest.fixture
async def deployment(own_rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with open_deployment(own_rabbitmq_vhost, tmp_path) as opened:
        yield opened


@pytest.fixture
def gated_jobs(tmp_path: Path) -> GatedJobs:
    return GatedJobs(directory=tmp_path)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_every_accepted_webhook_is_built_once_although_processes_are_killed(
    deployment: Deployment, gated_jobs: GatedJobs
) -> None:
    calls = await asyncio.to_thread(calls_for, gated_jobs)
    quarter = len(calls) // 4
    slices = [calls[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
    slices[-1] += calls[4 * quarter :]
    async with fault_proxy(deployment.vhost.url) as proxy:
        deployment = replace(deployment, amqp_url=proxy.url(deployment.vhost.url))
        forge = await deployment.forge(**secrets())
        victim, other = await deployment.orchestrator(**SETTINGS), await deployment.orchestrator(**SETTINGS)
        sender = Sender(deployment.client)
        await while_the_broker_is_killed(deployment, gated_jobs, sender, slices[0], proxy)
        forge = await while_forge_integration_is_killed(deployment, sender, slices[1], forge)
        lost = await while_an_orchestrator_is_killed(deployment, gated_jobs, sender, slices[2], victim)
        successor = await while_an_orchestrator_is_replaced(deployment, sender, slices[3], other)
        await everything_has_ended(deployment, sender)
        for service in (forge, successor):
            service.terminate()
            assert await asyncio.to_thread(service.ended) == 0, service.events[-5:]
    assert sender.refused == []
    runs = await deployment.runs()
    each_answer_has_one_run(sender.answers, calls, runs)
    jobs = [job for run in runs for job in await deployment.store.jobs(run_id=run.run_id, limit=10)]
    attempts = {job.job_id: await deployment.store.attempts(job.job_id) for job in jobs}
    assert len(jobs) == 5 * PUSHES
    each_job_succeeded_once(jobs, attempts, lost=lost, killed=victim.worker_id)
    the_records_agree(gated_jobs, runs, jobs, attempts)
    depths = await deployment.depths()
    assert depths.pop(STATUSES.queue)
    assert depths == dict.fromkeys(depths, 0)
    each_status_history_is_complete(await deployment.take_statuses(), runs, jobs)
    assert processes_in(deployment.shared_files.workspaces) == []


async def while_the_broker_is_killed(
    deployment: Deployment,
    gated_jobs: GatedJobs,
    sender: Sender,
    calls: Sequence[WebhookCall],
    proxy: FaultProxy,
) -> None:
    """Kill the broker while messages are being published and consumed."""
    server, half = deployment.vhost.server, len(calls) // 2

    async def some_wait() -> bool:
        return len(gated_jobs.attempts("waits")) >= FEW

    async def messages_are_under_way() -> bool:
        return not (await deployment.all_is_published() or await deployment.statuses_are_published())

    gated_jobs.close_gate()
    await sender.send(calls[: 2 * FEW])
    await wait_until_true("some jobs wait at the gate", some_wait)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(calls[2 * FEW : half]), name="sending")
        await sender.answered(3 * FEW)
        proxy.freeze()
    # They end now, and their end cannot be published.
    gated_jobs.open_gate()
    await wait_until_true("requests and statuses are on the wire", messages_are_under_way)
    await asyncio.to_thread(server.kill)
    proxy.drop()
    proxy.pass_through()
    await sender.send(calls[half:])
    await asyncio.to_thread(server.start)
    assert sender.unanswered == 0, "a broker that is away is no reason to refuse a webhook"


async def while_forge_integration_is_killed(
    deployment: Deployment, sender: Sender, calls: Sequence[WebhookCall], forge: ForgeProcess
) -> ForgeProcess:
    """Kill it between one answer and the next; return its successor."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(calls), name="sending")
        await sender.answered(len(sender.answers) + len(calls) // 4)
        forge.process.kill()
        successor = await deployment.forge(**secrets())
    assert sender.unanswered > 0, "it was killed in the middle"
    return successor


async def while_an_orchestrator_is_killed(
    deployment: Deployment,
    gated_jobs: GatedJobs,
    sender: Sender,
    calls: Sequence[WebhookCall],
    victim: OrchestratorProcess,
) -> set[tuple[str, int]]:
    """Kill it in the middle of its jobs; returns the attempts that it lost."""
    half = len(calls) // 2
    gated_jobs.close_gate()
    await sender.send(calls[:half])

    async def all_wait() -> bool:
        running_jobs = await running(deployment, victim)
        return bool(running_jobs) and running_jobs <= gated_jobs.attempts("waits")

    await wait_until_true("every job that it holds waits at the gate", all_wait)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(calls[half:]), name="sending")
        await sender.answered(len(sender.answers) + FEW)
        below = descendants(victim.process.pid)
        victim.kill()
        # Jobs that it claimed between the query and the kill wait at the shut gate, too.
        lost = await running(deployment, victim)

    async def all_dead() -> bool:
        return not any(map(is_alive, below))

    assert below
    assert lost
    await wait_until_true("what ran below a killed orchestrator is dead", all_dead)
    gated_jobs.open_gate()
    return lost


async def while_an_orchestrator_is_replaced(
    deployment: Deployment, sender: Sender, calls: Sequence[WebhookCall], leaving: OrchestratorProcess
) -> OrchestratorProcess:
    """Replace it by SIGTERM while it runs jobs; return its successor."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(calls), name="sending")
        successor = await deployment.orchestrator(**SETTINGS)

        async def has_work() -> bool:
            return bool(await running(deployment, leaving))

        await wait_until_true("it has jobs in its hands", has_work)
        leaving.terminate()
    assert await asyncio.to_thread(leaving.ended) == 0, leaving.events[-5:]
    assert await running(deployment, leaving) == set()
    return successor


async def everything_has_ended(deployment: Deployment, sender: Sender) -> None:
    requested = {request_id for answer in sender.answers for request_id in answer.request_ids}
    await wait_until_true("the inbox has nothing more to publish", deployment.all_is_published)
    await wait_until_true("every run has ended", lambda: deployment.have_ended(len(requested)))
    await wait_until_true("every status is with the broker", deployment.statuses_are_published)


async def running(deployment: Deployment, worker: OrchestratorProcess) -> set[tuple[str, int]]:
    """The attempts that it holds."""
    running_jobs = await deployment.store.jobs(state=JobState.RUNNING, limit=100)
    return {(job.job_id, job.attempt) for job in running_jobs if job.worker_id == worker.worker_id}


def each_answer_has_one_run(
    answers: Sequence[Answer], calls: Sequence[WebhookCall], runs: Sequence[RunView]
) -> None:
    """All copies of a push got one request id, and each request has one run."""
    assert len(answers) == len(calls)
    requests = defaultdict[tuple[Source, str], set[str]](set)
    for answer in answers:
        requests[answer.call.source, answer.call.commit].update(answer.request_ids)
    assert len(requests) == 4 * PUSHES
    assert {len(ids) for ids in requests.values()} == {1}
    accepted = Counter(answer.decision for answer in answers)
    assert accepted["ignored"] == 0
    # A push that was stored but not answered is a duplicate when it is sent again.
    assert 0.9 * len(requests) <= accepted["accepted"] <= len(requests)
    assert sorted(run.request_id for run in runs) == sorted(next(iter(ids)) for ids in requests.values())
    assert {(Source(run.source), run.commit_sha): {run.request_id} for run in runs} == requests


def each_job_succeeded_once(
    jobs: Sequence[JobView],
    attempts: Mapping[str, Sequence[AttemptView]],
    *,
    lost: set[tuple[str, int]],
    killed: str,
) -> None:
    """Only attempts of the killed orchestrator had no result."""
    assert {(job.state, job.reason) for job in jobs} == {(JobState.SUCCEEDED, Reason.COMPLETED)}
    without_result: dict[tuple[str, int], str] = {}
    for job in jobs:
        *others, last = attempts[job.job_id]
        assert (last.state, last.number) == (JobState.SUCCEEDED, job.attempt)
        for other in others:
            # A job that was claimed at the moment of a SIGTERM is released unchanged, and does not count.
            if other.reason is not Reason.RELEASED:
                assert other.reason in {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}, other
                without_result[job.job_id, other.number] = other.worker_id
    assert without_result == dict.fromkeys(lost, killed)


def the_records_agree(
    gated_jobs: GatedJobs,
    runs: Sequence[RunView],
    jobs: Sequence[JobView],
    attempts: Mapping[str, Sequence[AttemptView]],
) -> None:
    """Each job completed once, in its last attempt, on its own commit."""
    commits = {run.run_id: run.commit_sha for run in runs}
    expected = {job.job_id: (job.attempt, commits[job.run_id]) for job in jobs}
    assert gated_jobs.done_counts() == Counter(expected.keys())
    assert {
        record.job_id: (record.attempt, record.commit) for record in gated_jobs.records("done")
    } == expected
    begun = Counter(record.key for record in gated_jobs.records("begun"))
    assert set(begun.values()) == {1}
    assert set(begun) <= {(job_id, each.number) for job_id, tries in attempts.items() for each in tries}


def each_status_history_is_complete(
    reported: Sequence[JobStatusV1], runs: Sequence[RunView], jobs: Sequence[JobView]
) -> None:
    """Each context is complete and in order, the run last.

    Where the broker's confirm got lost, the same status comes again.
    """
    by_run = defaultdict[str, list[JobStatusV1]](list)
    for status in reported:
        by_run[status.run_id].append(status)
    assert set(by_run) == {run.run_id for run in runs}
    for run_id, statuses in by_run.items():
        of_context = defaultdict[str, list[int]](list)
        for status in {each.status_id: each for each in statuses}.values():
            of_context[status.context].append(status.sequence)
        for context, numbers in of_context.items():
            assert numbers == list(range(1, len(numbers) + 1)), (run_id, context)
        last = statuses[-1]
        statuses_of_run = len(of_context[RUN_CONTEXT])
        assert (last.job_id, last.state, last.sequence) == (None, RunState.SUCCEEDED, statuses_of_run)
    ended = Counter(
        status.job_id
        for status in {each.status_id: each for each in reported}.values()
        if status.job_id and status.state == JobState.SUCCEEDED
    )
    assert ended == Counter(job.job_id for job in jobs)
