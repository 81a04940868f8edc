"""A publisher that knows only v1, in whatever language: plain AMQP, the published fields and no others."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest

from solstice_common.messages.states import JobState
from tests.e2e.line import Line, open_line
from tests.patience import becomes_true
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.yard import Yard, ended, jobs_become

WORKFLOW = """
job "deploy" {
    concurrency "production"
    step "wait" run="until [ -e {gate} ]; do sleep 0.05; done"
}
"""

pytestmark = [
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
]


@pytest.fixture
async def line(rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Line]:
    async with open_line(rabbitmq_vhost, tmp_path) as opened:
        yield opened


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path, WORKFLOW)


async def publish(line: Line, yard: Yard, *sources: str) -> None:
    """One request for each source, as v1 has it; `schema_version` is left out, as it may be."""
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
                "repo_url": yard.repository.url,
                "commit_sha": yard.commit,
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
    line: Line, yard: Yard, settings: dict[str, str], built: set[str]
) -> None:
    yard.open_gate()
    await line.orchestrator(AMQP_QUEUE_TYPE="classic", **settings)
    await publish(line, yard, "manual", "github")
    await becomes_true("both have ended", lambda: line.have_ended(2))
    runs = {run.source: run for run in await line.runs()}
    assert {source for source, run in runs.items() if run.state == "succeeded"} == built
    for source in runs.keys() - built:
        assert runs[source].state == "errored"
        assert "code of somebody who may not push" in runs[source].detail


async def test_what_v1_trust_lists_shares_the_repository_s_groups(line: Line, yard: Yard) -> None:
    await line.orchestrator(AMQP_QUEUE_TYPE="classic", V1_TRUST="manual,github")
    await publish(line, yard, "github", "github")
    settled = {JobState.RUNNING, JobState.BLOCKED}
    jobs = await jobs_become(
        line.store,
        lambda views: len(views) == 2 and JobState.RUNNING in {view.state for view in views} <= settled,
    )
    assert sorted(view.state for view in jobs) == [JobState.BLOCKED, JobState.RUNNING]
    yard.open_gate()
    assert {view.state for view in await jobs_become(line.store, ended)} == {JobState.SUCCEEDED}
