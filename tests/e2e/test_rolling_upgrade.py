"""Services of the previous release work beside those of this one.

These tests need the code of that release, which the history of a shallow clone lacks: they are skipped there, and
`test_upgrade.py` has what the release recorded.
"""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import pytest

from solstice_common.messages import Source
from solstice_orchestrator.store import open_store
from tests.e2e.webhook_calls import Sender, push, secrets
from tests.gated_jobs import WORK, GatedJob, GatedJobs, publish_requests
from tests.polling import wait_until_true
from tests.releases.release_code import ABSENT, is_in_history, python_path, unpack
from tests.servers.forge_api import forge_api
from tests.servers.forge_integration import FRESH_FORGE, forge_integration
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.stores import all_runs

pytestmark = [
    # The commit of a release is all that is needed, and CI servers often fetch no history.
    pytest.mark.skipif(not is_in_history(), reason=ABSENT),
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
    pytest.mark.timeout(240),
]
RUNS: Final = 8
"""Requests in each of three thirds."""


@dataclass(frozen=True, kw_only=True)
class OnRabbitMQ(SharedFiles):
    """The files of services whose broker is a RabbitMQ."""

    amqp_url: str

    @property
    def broker_url(self) -> str:
        return self.amqp_url


async def have_ended(jobs: GatedJobs, count: int) -> bool:
    """Whether so many jobs have ended."""
    return len(jobs.records("done")) >= count


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a Python runs the code of the previous release."""
    return {"PYTHONPATH": python_path(unpack(tmp_path_factory.mktemp("old")))}


async def test_orchestrators_of_both_releases_share_a_database(
    rabbitmq_vhost: Vhost, postgresql_database: ScratchDatabase, tmp_path: Path, old: dict[str, str]
) -> None:
    files = OnRabbitMQ(directory=tmp_path, amqp_url=rabbitmq_vhost.url)
    url = postgresql_database.url
    work = GatedJob(tmp_path)
    work.open_gate()
    async with AsyncExitStack() as stack:

        async def started(**more: str) -> OrchestratorProcess:
            return await asyncio.to_thread(
                stack.enter_context,
                orchestrator(files, start=FRESH_ORCHESTRATOR, DATABASE_URL=url, LEASE_SECONDS="30", **more),
            )

        first = await started(**old)
        await publish_requests(files, work, RUNS)
        await wait_until_true("the first works", partial(have_ended, work.jobs, RUNS // 2))
        second = await started()
        await publish_requests(files, work, RUNS)
        await wait_until_true("both work", partial(have_ended, work.jobs, RUNS + RUNS // 2))
        first.terminate()
        await publish_requests(files, work, RUNS)
        assert await asyncio.to_thread(first.ended) == 0
        store = await stack.enter_async_context(open_store(url))

        async def all_ended() -> bool:
            runs = await all_runs(store)
            return len(runs) == 3 * RUNS and all(run.state.final for run in runs)

        await wait_until_true("all runs have ended", all_ended)
        assert {run.state.value for run in await all_runs(store)} == {"succeeded"}
        views = await store.jobs(limit=100)
        workers = {each.worker_id for view in views for each in await store.attempts(view.job_id)}
        assert workers == {first.worker_id, second.worker_id}
    # A job that was handed back at the end of the first has two attempts, of which one began.
    begun = Counter(record.job_id for record in work.jobs.records("begun"))
    assert begun == work.jobs.done_counts()
    assert sorted(begun.values()) == [1] * 3 * RUNS


@pytest.mark.parametrize("older", ["forge-integration", "orchestrator"])
async def test_one_service_may_be_older_than_the_other(
    rabbitmq_vhost: Vhost, tmp_path: Path, old: dict[str, str], older: str
) -> None:
    files, work = OnRabbitMQ(directory=tmp_path, amqp_url=rabbitmq_vhost.url), GatedJobs(directory=tmp_path)
    repository, commits = work.repository("harbour", {".solstice/job.sh": WORK}, commits=RUNS)
    async with AsyncExitStack() as stack:
        forge = await stack.enter_async_context(forge_api(Source.FORGEJO))
        config = tmp_path / "sources.toml"
        config.write_text(
            f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\n'
            f'secrets = ["env:FORGEJO_WEBHOOK_SECRET"]\ntoken = "plain:{forge.token}"\n'
        )
        receiving = await asyncio.to_thread(
            stack.enter_context,
            forge_integration(
                files,
                start=FRESH_FORGE,
                FORGE_CONFIG=str(config),
                **secrets(),
                **(old if older == "forge-integration" else {}),
            ),
        )
        await asyncio.to_thread(
            stack.enter_context,
            orchestrator(
                files,
                start=FRESH_ORCHESTRATOR,
                LEASE_SECONDS="30",
                **(old if older == "orchestrator" else {}),
            ),
        )
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=receiving.url, timeout=60, trust_env=False)
        )
        await Sender(client).send(
            [push(Source.FORGEJO, repository.url, each, now=time.time()) for each in commits]
        )

        async def all_are_shown() -> bool:
            shown = {key[1]: each["state"] for key, each in forge.shown.items() if key[2] == "solstice"}
            return shown == dict.fromkeys(commits, "success")

        await wait_until_true("the forge shows each result", all_are_shown)
    assert sorted(work.done_counts().values()) == [1] * RUNS
