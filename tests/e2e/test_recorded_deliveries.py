"""Recorded deliveries of real forges: those that ask for a build become runs, no others."""

import asyncio
from pathlib import Path

import pytest

from solstice_common.messages.states import RunState
from solstice_common.topology import STATUSES
from solstice_forge.decisions.sources import FORGES
from tests.e2e.deployment import JOBS, Deployment, open_deployment
from tests.polling import wait_until_true
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.webhooks.corpus import CORPUS, NO_CORPUS, Recorded, recorded


def secrets() -> dict[str, str]:
    """The secrets by which forge-integration accepts them as genuine."""
    return {
        f"{origin.upper()}_WEBHOOK_SECRET": ",".join(
            sorted({one.meta["auth"]["secret"] for one in recorded().values() if one.meta["forge"] == origin})
        )
        for origin in FORGES
    }


def is_requested(one: Recorded) -> bool:
    return bool(one.meta["expected"]["should_trigger"] != "no")


def is_built(one: Recorded) -> bool:
    """Nothing looks up missing facts here: a delivery that lacks some is declined."""
    return is_requested(one) and not one.meta["expected"]["needs_lookup"]


def subject(one: Recorded) -> tuple[str, str, str]:
    """The commit that the recording names as to be built."""
    fields = one.meta["expected"]["fields"]
    return one.meta["forge"], fields["repo_url"], fields["commit_sha"]


@pytest.mark.skipif(CORPUS is None, reason=NO_CORPUS)
@pytest.mark.timeout(240)  # it may have to start a RabbitMQ first
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_exactly_what_should_be_built_becomes_a_run_that_names_its_repository(
    rabbitmq_vhost: Vhost, tmp_path: Path
) -> None:
    async with open_deployment(rabbitmq_vhost, tmp_path) as deployment:
        forge = await deployment.forge(**secrets())
        # No server is asked for these repositories: their protocol is not allowed.
        orchestrator = await deployment.orchestrator(GIT_PROTOCOLS="file", UNTRUSTED_RUNS="run")
        decisions = {name: await decision(deployment, one) for name, one in recorded().items()}
        count = sum(word == "accepted" and is_built(recorded()[name]) for name, word in decisions.items())
        await wait_until_true("everything is published", deployment.all_is_published)
        await wait_until_true("every run has ended", lambda: deployment.have_ended(count))
        await wait_until_true("every status is with the broker", deployment.statuses_are_published)
        for service in (forge, orchestrator):
            service.terminate()
            assert await asyncio.to_thread(service.ended) == 0
        runs, depths, reported = (
            await deployment.runs(),
            await deployment.depths(),
            await deployment.take_statuses(),
        )
    built = {name for name, one in recorded().items() if is_built(one)}
    requested = {name for name, one in recorded().items() if is_requested(one)}
    assert {name for name, word in decisions.items() if word != "ignored"} == requested
    assert len(runs) == count
    assert {(run.source, run.repo_url, run.commit_sha) for run in runs} == {
        subject(recorded()[name]) for name in built
    }
    for run in runs:
        assert run.state is RunState.ERRORED
        assert run.repo_url in run.detail
        assert "GIT_PROTOCOLS" in run.detail
        last = [status for status in reported if status.run_id == run.run_id][-1]
        assert (last.state, last.repo_url) == (RunState.ERRORED, run.repo_url)
        assert run.repo_url in str(last.description)
    assert depths.pop(STATUSES.queue)
    assert depths == {JOBS.queue: 0, JOBS.dlq: 0, STATUSES.dlq: 0}


async def decision(deployment: Deployment, one: Recorded) -> str:
    answer = await deployment.client.post(
        f"/webhooks/{one.meta['forge']}", content=one.body, headers=one.headers("headers")
    )
    assert answer.is_success, f"{one.id}: {answer.text}"
    return str(answer.json()["decision"])
