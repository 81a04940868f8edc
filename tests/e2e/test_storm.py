"""A storm of webhooks while everything is restarted and killed: nothing accepted is lost, nothing ends twice."""

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
from tests.e2e.ledger import Ledger
from tests.e2e.letters import Answer, Letter, Sender, push, secrets, with_copies
from tests.e2e.line import Line, open_line
from tests.patience import becomes_true
from tests.repositories import Repository
from tests.servers.forge_integration import ForgeProcess
from tests.servers.orchestrator import OrchestratorProcess
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.servers.rabbitmq import DEFAULT, Vhost

PUSHES = 30
"""Of each forge."""
FEW = 3
SETTINGS = {"CAPACITY_MAP": "linux=3", "LEASE_SECONDS": "8", "DRAIN_SECONDS": "60"}
"""A lease outlives whatever a busy machine may keep an orchestrator waiting for."""
ONE_JOB = 'job "build" { step "work" run="sh .solstice/work.sh"; }'
TWO_JOBS = ONE_JOB + '\njob "test" { needs "build"; step "work" run="sh .solstice/work.sh"; }'
WORKFLOWS = {
    Source.GITHUB: ONE_JOB,
    Source.FORGEJO: ONE_JOB,
    Source.GITEA: ONE_JOB,
    Source.GITLAB: TWO_JOBS,
}


def letters_to(ledger: Ledger) -> list[Letter]:
    """Pushes of real commits of four real repositories, one forge after the other, and their copies."""
    made: Mapping[Source, tuple[Repository, Sequence[str]]] = {
        source: ledger.repository(source.value, workflow, PUSHES) for source, workflow in WORKFLOWS.items()
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
    """Whether the process is there and more than a corpse that nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def processes_in(directory: Path) -> list[int]:
    """Everything that runs and names a place in `directory` in its environment, as every process of a job does."""
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
async def line(own_rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Line]:
    async with open_line(own_rabbitmq_vhost, tmp_path) as opened:
        yield opened


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(directory=tmp_path)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_every_accepted_webhook_is_built_once_whatever_is_killed_meanwhile(
    line: Line, ledger: Ledger
) -> None:
    letters = await asyncio.to_thread(letters_to, ledger)
    quarter = len(letters) // 4
    slices = [letters[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
    slices[-1] += letters[4 * quarter :]
    async with fault_proxy(line.vhost.url) as proxy:
        line = replace(line, amqp_url=proxy.url(line.vhost.url))
        forge = await line.forge(**secrets())
        victim, other = await line.orchestrator(**SETTINGS), await line.orchestrator(**SETTINGS)
        sender = Sender(line.client)
        await while_the_broker_is_killed(line, ledger, sender, slices[0], proxy)
        forge = await while_forge_integration_is_killed(line, sender, slices[1], forge)
        lost = await while_an_orchestrator_is_killed(line, ledger, sender, slices[2], victim)
        heir = await while_an_orchestrator_is_replaced(line, sender, slices[3], other)
        await everything_has_ended(line, sender)
        for service in (forge, heir):
            service.terminate()
            assert await asyncio.to_thread(service.ended) == 0, service.events[-5:]
    assert sender.refused == []
    runs = await line.runs()
    each_answer_has_one_run(sender.answers, letters, runs)
    jobs = [job for run in runs for job in await line.store.jobs(run_id=run.run_id, limit=10)]
    attempts = {job.job_id: await line.store.attempts(job.job_id) for job in jobs}
    assert len(jobs) == 5 * PUSHES
    each_job_succeeded_once(jobs, attempts, lost=lost, killed=victim.worker_id)
    the_ledger_agrees(ledger, runs, jobs, attempts)
    depths = await line.depths()
    assert depths.pop(STATUSES.queue)
    assert depths == dict.fromkeys(depths, 0)
    each_run_was_told_to_its_end(await line.told(), runs, jobs)
    assert processes_in(line.place.workspaces) == []


async def while_the_broker_is_killed(
    line: Line, ledger: Ledger, sender: Sender, letters: Sequence[Letter], proxy: FaultProxy
) -> None:
    """In the middle of publishing and consuming: what is on the wire is never answered, wherever it was."""
    server, half = line.vhost.server, len(letters) // 2

    async def some_wait() -> bool:
        return len(ledger.lines("waits")) >= FEW

    async def much_is_on_the_wire() -> bool:
        return not (await line.all_is_published() or await line.all_is_told())

    ledger.shut()
    await sender.send(letters[: 2 * FEW])
    await becomes_true("some jobs wait at the gate", some_wait)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(letters[2 * FEW : half]), name="sending")
        await sender.answered(3 * FEW)
        proxy.freeze()
    # They end now, and nobody can be told of it.
    ledger.open()
    await becomes_true("requests and statuses are on the wire", much_is_on_the_wire)
    await asyncio.to_thread(server.kill)
    proxy.drop()
    proxy.pass_through()
    await sender.send(letters[half:])
    await asyncio.to_thread(server.start)
    assert sender.unanswered == 0, "a broker that is away is no reason to refuse a webhook"


async def while_forge_integration_is_killed(
    line: Line, sender: Sender, letters: Sequence[Letter], forge: ForgeProcess
) -> ForgeProcess:
    """Between one answer and the next; returns its successor."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(letters), name="sending")
        await sender.answered(len(sender.answers) + len(letters) // 4)
        forge.process.kill()
        successor = await line.forge(**secrets())
    assert sender.unanswered > 0, "it was killed in the middle"
    return successor


async def while_an_orchestrator_is_killed(
    line: Line, ledger: Ledger, sender: Sender, letters: Sequence[Letter], victim: OrchestratorProcess
) -> set[tuple[str, int]]:
    """While all its jobs are half done and requests come in; returns the attempts that died with it."""
    half = len(letters) // 2
    ledger.shut()
    await sender.send(letters[:half])

    async def all_wait() -> bool:
        held = await running(line, victim)
        return bool(held) and held <= ledger.attempts("waits")

    await becomes_true("every job that it holds waits at the gate", all_wait)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(letters[half:]), name="sending")
        await sender.answered(len(sender.answers) + FEW)
        below = descendants(victim.process.pid)
        victim.kill()
        # What it took between the question and the kill stood before the shut gate as well.
        lost = await running(line, victim)

    async def all_dead() -> bool:
        return not any(map(is_alive, below))

    assert below
    assert lost
    await becomes_true("what ran below a killed orchestrator is dead", all_dead)
    ledger.open()
    return lost


async def while_an_orchestrator_is_replaced(
    line: Line, sender: Sender, letters: Sequence[Letter], leaving: OrchestratorProcess
) -> OrchestratorProcess:
    """By SIGTERM, with jobs in its hands; returns its successor."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.send(letters), name="sending")
        successor = await line.orchestrator(**SETTINGS)

        async def has_work() -> bool:
            return bool(await running(line, leaving))

        await becomes_true("it has jobs in its hands", has_work)
        leaving.terminate()
    assert await asyncio.to_thread(leaving.ended) == 0, leaving.events[-5:]
    assert await running(line, leaving) == set()
    return successor


async def everything_has_ended(line: Line, sender: Sender) -> None:
    asked_for = {request_id for answer in sender.answers for request_id in answer.request_ids}
    await becomes_true("the inbox has nothing more to publish", line.all_is_published)
    await becomes_true("every run has ended", lambda: line.have_ended(len(asked_for)))
    await becomes_true("every status is with the broker", line.all_is_told)


async def running(line: Line, worker: OrchestratorProcess) -> set[tuple[str, int]]:
    """The attempts that it holds."""
    held = await line.store.jobs(state=JobState.RUNNING, limit=100)
    return {(job.job_id, job.attempt) for job in held if job.worker_id == worker.worker_id}


def each_answer_has_one_run(
    answers: Sequence[Answer], letters: Sequence[Letter], runs: Sequence[RunView]
) -> None:
    """All copies of a push were told of one request, and there is a run of it, and there are no others."""
    assert len(answers) == len(letters)
    requests = defaultdict[tuple[Source, str], set[str]](set)
    for answer in answers:
        requests[answer.letter.source, answer.letter.commit].update(answer.request_ids)
    assert len(requests) == 4 * PUSHES
    assert {len(ids) for ids in requests.values()} == {1}
    accepted = Counter(answer.decision for answer in answers)
    assert accepted["ignored"] == 0
    # A push that was kept and not answered is a duplicate when it is sent again.
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
    """Nobody's attempt came to nothing but those of the orchestrator that was killed."""
    assert {(job.state, job.reason) for job in jobs} == {(JobState.SUCCEEDED, Reason.COMPLETED)}
    in_vain: dict[tuple[str, int], str] = {}
    for job in jobs:
        *others, last = attempts[job.job_id]
        assert (last.state, last.number) == (JobState.SUCCEEDED, job.attempt)
        for other in others:
            # One that was claimed in the very moment of a SIGTERM goes back as it came, and counts for nothing.
            if other.reason is not Reason.RELEASED:
                assert other.reason in {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}, other
                in_vain[job.job_id, other.number] = other.worker_id
    assert in_vain == dict.fromkeys(lost, killed)


def the_ledger_agrees(
    ledger: Ledger,
    runs: Sequence[RunView],
    jobs: Sequence[JobView],
    attempts: Mapping[str, Sequence[AttemptView]],
) -> None:
    """The side effects: each job came to its end once, in its last attempt, on its own commit."""
    commits = {run.run_id: run.commit_sha for run in runs}
    expected = {job.job_id: (job.attempt, commits[job.run_id]) for job in jobs}
    assert ledger.done() == Counter(expected.keys())
    assert {line.job_id: (int(line.attempt), line.commit) for line in ledger.lines("done")} == expected
    begun = Counter((line.job_id, int(line.attempt)) for line in ledger.lines("begun"))
    assert set(begun.values()) == {1}
    assert set(begun) <= {(job_id, each.number) for job_id, tries in attempts.items() for each in tries}


def each_run_was_told_to_its_end(
    told: Sequence[JobStatusV1], runs: Sequence[RunView], jobs: Sequence[JobView]
) -> None:
    """Each context in order and without a gap, the run last; a copy, where the broker's answer got lost, is the same status again."""
    by_run = defaultdict[str, list[JobStatusV1]](list)
    for status in told:
        by_run[status.run_id].append(status)
    assert set(by_run) == {run.run_id for run in runs}
    for run_id, statuses in by_run.items():
        of_context = defaultdict[str, list[int]](list)
        for status in {each.status_id: each for each in statuses}.values():
            of_context[status.context].append(status.sequence)
        for context, numbers in of_context.items():
            assert numbers == list(range(1, len(numbers) + 1)), (run_id, context)
        last = statuses[-1]
        told_of_run = len(of_context[RUN_CONTEXT])
        assert (last.job_id, last.state, last.sequence) == (None, RunState.SUCCEEDED, told_of_run)
    ended = Counter(
        status.job_id
        for status in {each.status_id: each for each in told}.values()
        if status.job_id and status.state == JobState.SUCCEEDED
    )
    assert ended == Counter(job.job_id for job in jobs)
