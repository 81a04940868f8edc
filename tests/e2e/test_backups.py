"""After a backup under load, a lost machine and a restore, everything runs once."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.messages import Source
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.views import RunView
from tests.e2e.webhook_calls import Sender, push, secrets
from tests.gated_jobs import WORK, GatedJobs
from tests.polling import wait_until_true
from tests.servers.forge_integration import forge_integration
from tests.servers.forks import run_command
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.stores import all_runs

PUSHES = 8
"""In each of three thirds."""
WORKFLOW = f'job "build" {{ step "work" run="{WORK}"; }}'


def solstice(environment: dict[str, str], *words: str | Path) -> dict[str, Any]:
    done = run_command("solstice", *map(str, words), "--json", env=environment)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@asynccontextmanager
async def runs(files: SharedFiles) -> AsyncIterator[Sequence[RunView]]:
    async with open_store(files.database_url) as store:
        yield await all_runs(store)


async def have_ended(files: SharedFiles, request_ids: set[str]) -> bool:
    async with runs(files) as found:
        ended = {run.request_id for run in found if run.state.final}
    return request_ids <= ended


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_what_was_accepted_before_a_backup_runs_once_after_a_restore(
    rabbitmq_vhost: Vhost, tmp_path: Path
) -> None:
    files, jobs = SharedFiles(directory=tmp_path / "machine"), GatedJobs(directory=tmp_path)
    files.directory.mkdir()
    environment = {
        **files.environment(AMQP_URL=rabbitmq_vhost.url),
        "FORGE_INBOX_URL": f"sqlite:///{files.directory / 'inbox.db'}",
        "SOLSTICE_HOME": str(tmp_path / "home"),
    }
    backup = tmp_path / "backup.zip"
    repository, commits = await asyncio.to_thread(
        jobs.repository, "harbour", {".solstice/workflow.kdl": WORKFLOW}, commits=3 * PUSHES
    )
    calls = [push(Source.FORGEJO, repository.url, commit, now=time.time()) for commit in commits]

    def accepted(sender: Sender) -> set[str]:
        return {each for answer in sender.answers for each in answer.request_ids}

    with ExitStack() as stack:
        forge = await asyncio.to_thread(
            stack.enter_context, forge_integration(files, AMQP_URL=rabbitmq_vhost.url, **secrets())
        )
        async with httpx2.AsyncClient(base_url=forge.url, timeout=60, trust_env=False) as client:
            sender = Sender(client)
            # Some have ended, some run, and some are only in the queue when the backup is made.
            first = await asyncio.to_thread(
                stack.enter_context, orchestrator(files, AMQP_URL=rabbitmq_vhost.url)
            )
            await sender.send(calls[:PUSHES])
            first.kill()
            await sender.send(calls[PUSHES : 2 * PUSHES])
            before = accepted(sender)
            later = asyncio.create_task(sender.send(calls[2 * PUSHES :]), name="load")
            document = await asyncio.to_thread(solstice, environment, "backup", backup)
            await later
            assert [each["name"] for each in document["databases"]] == ["store", "inbox"]
            assert len(document["left_out"]) == 1
            # The queue is empty afterwards: only the lost store has these runs.
            second = await asyncio.to_thread(
                stack.enter_context, orchestrator(files, AMQP_URL=rabbitmq_vhost.url)
            )
            await wait_until_true("all has ended", lambda: have_ended(files, accepted(sender)))
        second.kill()
        forge.kill()
        await asyncio.to_thread(lose, files.directory)

        restored = await asyncio.to_thread(solstice, environment, "restore", backup)
        assert restored["republished"] >= PUSHES
        await asyncio.to_thread(
            stack.enter_context, forge_integration(files, AMQP_URL=rabbitmq_vhost.url, **secrets())
        )
        await asyncio.to_thread(stack.enter_context, orchestrator(files, AMQP_URL=rabbitmq_vhost.url))
        await wait_until_true("it has ended again", lambda: have_ended(files, before))
        async with runs(files) as found:
            counts = Counter(run.request_id for run in found)
            states = {run.state.value for run in found if run.request_id in before}
        assert {counts[each] for each in before} == {1}
        assert set(counts.values()) == {1}
        assert states <= {"succeeded", "cancelled"}  # a newer push may supersede one


def lose(machine: Path) -> None:
    """Remove the databases with all beside them."""
    for path in machine.iterdir():
        if path.is_file():
            path.unlink()
