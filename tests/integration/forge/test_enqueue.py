"""`forge-integration enqueue` on a real RabbitMQ: its answers and exit codes."""

import json
import os
import subprocess
import uuid
from datetime import UTC, datetime

import pytest

from solstice_common.broker import PublishStatus, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.messages import JobRequestV1
from solstice_forge.commands.enqueue import TRIES, EnqueueInput, EnqueueSettings, job_request, publish
from tests.servers.forks import run_command
from tests.servers.rabbitmq import Vhost

JOB_INPUT = ("--repo-url", "https://forge.example/acme/anvil.git", "--commit-sha", "c" * 40)


def enqueue(url: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    stored = {
        name: value for name, value in os.environ.items() if not name.startswith(("AMQP_", "SOLSTICE_"))
    }
    environment = {**stored, "AMQP_URL": url, "NO_COLOR": "1", **settings}
    return run_command("forge-integration", "enqueue", *JOB_INPUT, *arguments, env=environment)


async def test_request_is_confirmed_and_in_the_queue(rabbitmq_vhost: Vhost) -> None:
    done = enqueue(rabbitmq_vhost.url, "--json", "--priority", "high", "--idempotency-key", "nightly")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["published"] == "confirmed"
    async with (
        open_broker(rabbitmq_vhost.url, name="test") as broker,
        broker.consume("solstice.jobs.v1", prefetch=1) as consumer,
    ):
        (delivery,) = await consumer.batch()
        await consumer.settle([(delivery, Ack())])
    request = JobRequestV1.decode(delivery.body)
    assert (request.request_id, request.idempotency_key) == (answer["request_id"], "nightly")
    assert delivery.type == "jobrequest.v1"
    assert delivery.correlation_id == request.request_id
    assert delivery.headers["x-solstice-idempotency-key"] == "nightly"


def test_full_queue_is_reported_as_full(rabbitmq_vhost: Vhost) -> None:
    first = enqueue(rabbitmq_vhost.url)
    assert first.returncode == 0
    assert first.stdout.startswith("confirmed: request ")
    rabbitmq_vhost.policy(r"^solstice\.jobs\.v1$", {"max-length": 1})
    # A quorum queue accepts a few more before it notices.
    answers = [enqueue(rabbitmq_vhost.url) for _ in range(6)]
    refused = [done for done in answers if done.returncode]
    assert {done.returncode for done in refused} == {1}
    assert "rejected: the broker did not take the request" in refused[-1].stderr


def test_queue_of_another_kind_is_reported_with_both_sides(rabbitmq_vhost: Vhost) -> None:
    assert enqueue(rabbitmq_vhost.url, AMQP_QUEUE_TYPE="classic").returncode == 0
    done = enqueue(rabbitmq_vhost.url)
    assert done.returncode == 1
    assert "exists on the broker with other properties than ours" in done.stderr
    assert "AMQP_QUEUE_TYPE" in done.stderr


def test_broker_that_is_not_there_is_reported_and_worth_a_retry() -> None:
    done = enqueue("amqp://127.0.0.1:1/", "--enqueue-connect-seconds", "0.3")
    assert done.returncode == 3
    assert done.stderr.startswith("error: no connection to the broker at amqp://127.0.0.1:1/")
    assert done.stderr.count("\n") == 1


@pytest.mark.timeout(240)  # it stops and starts a server of its own
async def test_unconfirmed_publish_is_unknown_and_stays_one_request(
    own_rabbitmq_vhost: Vhost,
) -> None:
    settings = EnqueueSettings(amqp_url=own_rabbitmq_vhost.url, enqueue_confirm_seconds=1.0)
    request = job_request(
        EnqueueInput(repo_url=JOB_INPUT[1], commit_sha=JOB_INPUT[3]),
        now=datetime.now(UTC),
        new_id=uuid.uuid4(),
    )
    assert (await publish(request, settings)).confirmed
    own_rabbitmq_vhost.server.raise_alarm("memory")
    try:
        published = await publish(request, settings)
    finally:
        own_rabbitmq_vhost.server.clear_alarm("memory")
    assert published.status is PublishStatus.UNKNOWN
    async with (
        open_broker(own_rabbitmq_vhost.url, name="test") as broker,
        broker.consume("solstice.jobs.v1", prefetch=64) as consumer,
    ):
        deliveries = await consumer.batch()
        await consumer.settle([(delivery, Ack()) for delivery in deliveries])
    assert len(deliveries) <= 1 + TRIES
    assert {delivery.correlation_id for delivery in deliveries} == {request.request_id}
