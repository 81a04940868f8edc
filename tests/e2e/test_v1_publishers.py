"""A publisher that knows only v1 uses plain AMQP and the published fields alone."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest

from solstice_common.messages.states import JobState
from tests.e2e.deployment import Deployment, open_deployment
from tests.gated_jobs import WORK, GatedJob, all_ended, wait_for_jobs
from tests.polling import wait_until_true
from tests.servers.rabbitmq import DEFAULT, Vhost

WORKFLOW = f"""
job "deploy" {{
    concurrency "production"
    step "wait" run="{WORK}"
}}
"""

pytestmark = [
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
]


@pytest.fixture
async def line(rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with open_deployment(rabbitmq_vhost, tmp_path) as opened:
        yield opened


@pytest.fixture
def gated_job(tmp_path: Path) -> GatedJob:
    """One whose runs share a concurrency group."""
    return GatedJob(tmp_path, WORKFLOW)


async def publish(line: Deployment, gated_job: GatedJob, *sources: str) -> None:
    """Publish one v1 request for each source, without the optional `schema_version`."""
    async with await aio_pika.connect(line.vhost.url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("solstice.jobs", aio_pika.ExchangeType.DIRECT, durable=True)
        await channel.declare_exchange("solstice.dlx", aio_pika.ExchangeType.FANOUT, durable=True)
        dead = await channel.declare_queue("solstice.jobs.v1.dlq", durable=True)
        await dead.bind("solstice.dlx")
        queue = await channel.declare_queue(
            "solstice.jobs.v1", durable=True, arguments={"x-dead-letter-exchange": "solstice.dlx"}
        )
        await queue.bind(exchange, "jobrequest.v1")
        for source in sources:
            body = {
                "request_id": str(uuid.uuid4()),
                "source": source,
                "repo_url": gated_job.repository.url,
                "commit_sha": gated_job.commit,
                "submitted_at": "2026-01-31T12:00:00Z",
            }
            await exchange.publish(aio_pika.Message(json.dumps(body).encode()), "jobrequest.v1")


@pytest.mark.parametrize(
    ("settings", "built"),
    [
        ({}, {"manual"}),
        ({"V1_TRUST": "manual,github"}, {"manual", "github"}),
        ({"V1_TRUST": ""}, set()),
    ],
    ids=["unset", "manual and github", "none"],
)
async def test_v1_trust_says_whose_requests_are_built(
    line: Deployment, gated_job: GatedJob, settings: dict[str, str], built: set[str]
) -> None:
    gated_job.open_gate()
    await line.orchestrator(AMQP_QUEUE_TYPE="classic", **settings)
    await publish(line, gated_job, "manual", "github")
    await wait_until_true("both have ended", lambda: line.have_ended(2))
    runs = {run.source: run for run in await line.runs()}
    assert {source for source, run in runs.items() if run.state == "succeeded"} == built
    for source in runs.keys() - built:
        assert runs[source].state == "errored"
        assert "the author of this code may not push" in runs[source].detail


async def test_what_v1_trust_lists_shares_the_repository_s_groups(
    line: Deployment, gated_job: GatedJob
) -> None:
    await line.orchestrator(AMQP_QUEUE_TYPE="classic", V1_TRUST="manual,github")
    await publish(line, gated_job, "github", "github")
    settled = {JobState.RUNNING, JobState.BLOCKED}
    jobs = await wait_for_jobs(
        line.store,
        lambda views: len(views) == 2 and JobState.RUNNING in {view.state for view in views} <= settled,
    )
    assert sorted(view.state for view in jobs) == [JobState.BLOCKED, JobState.RUNNING]
    gated_job.open_gate()
    assert {view.state for view in await wait_for_jobs(line.store, all_ended)} == {JobState.SUCCEEDED}
