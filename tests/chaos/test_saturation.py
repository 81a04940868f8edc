"""With too much work, programs get 503, webhooks 202, and all is done."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.http.tokens import TokenScope
from tests.e2e.deployment import JOBS, Deployment, open_deployment
from tests.gated_jobs import GatedJob
from tests.integration.forge.pushes import SECRET, push
from tests.polling import wait_until_true
from tests.servers.rabbitmq import Vhost
from tests.servers.tokens import bearer, make_token


@pytest.fixture
async def deployment(rabbitmq_vhost: Vhost, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with open_deployment(rabbitmq_vhost, tmp_path) as opened:
        yield opened


async def test_a_full_system_answers_programs_503_stores_webhooks_and_recovers(
    deployment: Deployment, tmp_path: Path
) -> None:
    gated_job = GatedJob(tmp_path)
    asks = bearer(make_token(deployment.shared_files.directory / "tokens.json", "asker", TokenScope.ENQUEUE))
    job_input = {"repo_url": gated_job.repository.url, "commit_sha": gated_job.commit}
    await deployment.forge(FORGE_API_BACKLOG="5", FORGE_API_PER_MINUTE="1000", FORGEJO_WEBHOOK_SECRET=SECRET)
    orchestrator = await deployment.orchestrator(MAX_BACKLOG="5", AMQP_PREFETCH="2", CAPACITY_MAP="linux=1")
    answers = []

    async def is_full() -> bool:
        answers.append(await deployment.client.post("/api/v1/jobs", json=job_input, headers=asks))
        if answers[-1].status_code == 202:
            return False
        # Not for messages on their way to the broker, nor for those that an orchestrator is about to take.
        return await deployment.all_is_published() and ((await deployment.depths())[JOBS.queue] or 0) >= 5

    await wait_until_true("the API takes no more, and the queue holds it", is_full)
    refused = answers[-1]
    assert (refused.status_code, refused.json()["reason"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    assert orchestrator.logged("intake.full")["most"] == 5

    async def gauges_tell() -> bool:
        forge = (await deployment.client.get("/metrics")).text
        metrics = (await deployment.client.get(f"{orchestrator.url}/metrics")).text
        return "solstice_intake_paused 1.0" in metrics and "solstice_forge_queue_ready 0.0" not in forge

    await wait_until_true("the gauges tell of it", gauges_tell)
    for number in range(1, 4):
        body, headers = push(number)
        assert (
            await deployment.client.post("/webhooks/forgejo", content=body, headers=headers)
        ).status_code == 202
    gated_job.open_gate()

    async def is_accepted() -> bool:
        answers.append(await deployment.client.post("/api/v1/jobs", json=job_input, headers=asks))
        return answers[-1].status_code == 202

    await wait_until_true("the API takes jobs again", is_accepted)
    assert orchestrator.logged("intake.has_room")
    accepted = sum(answer.status_code == 202 for answer in answers)
    await wait_until_true("all that was taken is done", lambda: deployment.have_ended(accepted + 3))
    assert len(await deployment.runs()) == accepted + 3
