"""Real services with a broken broker: poison messages, unroutable ones, a wrong queue type."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.broker import Message
from solstice_common.messages import JobRequestV1, Source
from solstice_common.messages.states import RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from tests.builders import job_request
from tests.e2e.deployment import JOBS, Deployment, open_deployment
from tests.e2e.webhook_calls import Sender, push, secrets
from tests.gated_jobs import WORK, GatedJobs
from tests.polling import wait_until_true
from tests.repositories import Repository
from tests.servers import forge_integration, orchestrator
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.servers.service_process import base_environment
from tests.traffic import connected, drain, wait_for_ready

WORKFLOW = {".solstice/workflow.kdl": f'job "build" {{ step "work" run="{WORK}"; }}'}
PUBLISH = b"\x00\x3c\x00\x28"
"""How `basic.publish` begins: class 60, method 40."""
BINDING = f"e/{JOBS.exchange}/q/{JOBS.queue}/{JOBS.routing_key}"
POISON = {
    "not_utf8": b"\xff\xfe",
    "unknown_version": b'{"schema_version":"jobrequest.v9"}',
    "invalid_field": job_request().encode().replace(b"https://", b"ext::sh -c true;"),
}

pytestmark = pytest.mark.timeout(240)  # it may have to start a RabbitMQ first


@pytest.fixture
async def deployment(rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with open_deployment(rabbitmq_vhost, tmp_path) as opened:
        yield opened


@pytest.fixture
def gated_jobs(tmp_path: Path) -> GatedJobs:
    return GatedJobs(directory=tmp_path)


def topology(queue_type: str) -> BrokerSettings:
    return BrokerSettings.model_construct(amqp_queue_type=queue_type)


def command(code: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A service's command, run to its end."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def enqueue(url: str, repository: Repository, commit: str) -> subprocess.CompletedProcess[str]:
    options = ("--repo-url", repository.url, "--commit-sha", commit)
    return command(
        forge_integration.START, "enqueue", *options, environment={**base_environment(), "AMQP_URL": url}
    )


async def test_poison_between_good_requests_is_put_aside_and_they_run(
    deployment: Deployment, gated_jobs: GatedJobs
) -> None:
    repository, commits = gated_jobs.repository("anvil", WORKFLOW, commits=len(POISON) + 1)
    good = [job_request(repo_url=repository.url, commit_sha=commit, ref=None) for commit in commits]
    bodies = [good[0].encode()]
    for poison, request in zip(POISON.values(), good[1:], strict=True):
        bodies += [poison, request.encode()]
    async with connected(deployment.vhost.url, topology=full_topology(topology("quorum"))) as broker:
        for outcome in await broker.publish(
            [
                Message(
                    exchange=JOBS.exchange,
                    routing_key=JOBS.routing_key,
                    body=body,
                    type=JobRequestV1.VERSION,
                    correlation_id=f"number {number}",
                )
                for number, body in enumerate(bodies)
            ]
        ):
            assert outcome.confirmed
        orchestrator = await deployment.orchestrator()
        await wait_until_true("the good ones have run", lambda: deployment.have_ended(len(good)))
        await wait_for_ready(broker, JOBS.dlq, len(POISON))
        dead_letters = await drain(broker, JOBS.dlq, len(POISON))
        await wait_for_ready(broker, JOBS.queue, 0)
    assert {run.commit_sha: run.state for run in await deployment.runs()} == dict.fromkeys(
        commits, RunState.SUCCEEDED
    )
    assert {
        dead_letter.headers["x-solstice-reason"]: dead_letter.body for dead_letter in dead_letters
    } == POISON
    for dead_letter in dead_letters:
        assert dead_letter.headers["x-solstice-detail"]
        assert dead_letter.headers["x-solstice-queue"] == JOBS.queue
        assert dead_letter.headers["x-solstice-refused-by"]
        assert dead_letter.headers["x-solstice-refused-at"]
        assert dead_letter.headers["x-solstice-attempt"] == 1
        assert str(dead_letter.correlation_id).startswith("number ")
        assert dead_letter.type == JobRequestV1.VERSION
    orchestrator.terminate()
    assert await asyncio.to_thread(orchestrator.ended) == 0


async def test_enqueue_says_that_a_request_found_no_queue(
    deployment: Deployment, gated_jobs: GatedJobs
) -> None:
    """The command binds the queue, so the test unbinds it just before the publish."""
    repository, (commit,) = gated_jobs.repository("anvil", WORKFLOW)
    async with fault_proxy(deployment.vhost.url) as proxy:
        proxy.before(PUBLISH, lambda: deployment.vhost.api("DELETE", "bindings", BINDING))
        done = await asyncio.to_thread(enqueue, proxy.url(deployment.vhost.url), repository, commit)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error: unroutable: no queue is bound to the exchange 'solstice.jobs' with the key 'jobrequest.v1'"
    )
    again = await asyncio.to_thread(enqueue, deployment.vhost.url, repository, commit)
    assert again.returncode == 0, again.stderr
    assert (await deployment.depths())[JOBS.queue] == 1, (
        "what was told to be lost is not there, what was confirmed is"
    )


async def test_a_webhook_that_found_no_queue_is_built_nevertheless(
    deployment: Deployment, gated_jobs: GatedJobs
) -> None:
    repository, commits = gated_jobs.repository("anvil", WORKFLOW, commits=2)
    dead_letters = [push(Source.GITEA, repository.url, commit, now=time.time()) for commit in commits]
    forge, sender = await deployment.forge(**secrets()), Sender(deployment.client)
    await deployment.orchestrator()
    await sender.send(dead_letters[:1])
    await wait_until_true("the first is built", lambda: deployment.have_ended(1))
    await asyncio.to_thread(deployment.vhost.api, "DELETE", "bindings", BINDING)
    await sender.send(dead_letters[1:])
    missed = await asyncio.to_thread(forge.logged, "relay.not_published")
    assert missed["status"] == "unroutable"
    await wait_until_true("the second is built", lambda: deployment.have_ended(2))
    assert [answer.decision for answer in sender.answers] == ["accepted"] * 2
    assert sorted(run.commit_sha for run in await deployment.runs()) == sorted(commits)


async def test_a_queue_of_another_kind_is_reported_by_both_services_and_costs_no_webhook(
    deployment: Deployment, gated_jobs: GatedJobs
) -> None:
    repository, (commit,) = gated_jobs.repository("anvil", WORKFLOW)
    async with connected(deployment.vhost.url, topology=full_topology(topology("classic"))):
        pass
    done = await asyncio.to_thread(
        command,
        orchestrator.START,
        "run",
        environment=deployment.shared_files.environment(AMQP_URL=deployment.vhost.url, LOG_LEVEL="error"),
    )
    assert done.returncode == 1, done.stderr
    message, declared, on_broker, advice = done.stderr.splitlines()
    assert message == f"error: queue '{JOBS.queue}' exists on the broker with other properties than ours."
    assert "x-queue-type='quorum'" in declared
    assert "inequivalent arg 'x-" in on_broker
    assert "AMQP_QUEUE_TYPE" in advice
    await deployment.forge(**secrets())
    sender = Sender(deployment.client)
    await sender.send([push(Source.GITHUB, repository.url, commit, now=time.time())])
    assert [answer.decision for answer in sender.answers] == ["accepted"]

    async def prints_why() -> bool:
        ready = await deployment.client.get("/readyz")
        reported = str(ready.json()["missing"].get("broker"))
        return ready.status_code == 503 and JOBS.queue in reported and "AMQP_QUEUE_TYPE" in reported

    await wait_until_true("/readyz says what is wrong", prints_why)
    # As the error advises. Requests that were stored meanwhile go to the queue that is made now.
    await asyncio.to_thread(remove_queues, deployment.vhost)
    await deployment.orchestrator()
    await wait_until_true("it is built", lambda: deployment.have_ended(1))
    assert [(run.commit_sha, run.state) for run in await deployment.runs()] == [(commit, RunState.SUCCEEDED)]
    assert (await deployment.client.get("/readyz")).status_code == 200


def remove_queues(vhost: Vhost) -> None:
    for queue in vhost.api("GET", "queues"):
        vhost.api("DELETE", "queues", queue["name"])
