"""What a broker loses that confirms before it syncs: said before, and counted after."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

import httpx2
import pytest

from solstice_common.messages import Source
from tests.chaos.faults.brokers import broker_under_faults
from tests.chaos.faults.line import CONTEXTS, WORKFLOW, Line, open_line
from tests.e2e.webhook_calls import push, secrets
from tests.polling import wait_until_true
from tests.servers.forge_integration import START as FORGE
from tests.servers.service_process import base_environment
from tests.servers.versions import NATS, REDIS

PUSHES: Final = 2
"""Before the power cut, and so many each that wait in the broker then, and that come later."""


def is_shown(line: Line, commits: Collection[str]) -> Callable[[], Awaitable[bool]]:
    """Whether the forge shows that all jobs of these commits have succeeded."""
    expected = {(commit, context) for commit in commits for context in CONTEXTS}

    async def all_succeeded() -> bool:
        shown = line.forge.shown.items()
        return expected <= {
            (commit, context) for (_, commit, context), status in shown if status["state"] == "success"
        }

    return all_succeeded


def replay(line: Line, delivery: str) -> None:
    """Have forge-integration request a run of a stored delivery."""
    environment = {
        **base_environment(),
        **secrets(),
        "FORGE_INBOX_URL": f"sqlite:///{line.shared_files.directory / 'inbox.db'}",
        "FORGE_CONFIG": str(line.config),
    }
    subprocess.run(
        [sys.executable, "-c", FORGE, "deliveries", "replay", delivery],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [REDIS, NATS])
async def test_requests_lost_by_a_degraded_broker_are_counted_and_can_be_replayed(
    kind: str, tmp_path: Path
) -> None:
    async with open_line(broker_under_faults(kind, tmp_path, durable=False), tmp_path) as line:
        for service in line.services:
            assert await asyncio.to_thread(service.logged, "broker.degraded")
        for url in (str(line.client.base_url), line.orchestrators[0].url):
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
                ready = (await client.get("/readyz")).json()
            assert ready["notices"]["broker"].startswith("degraded: ")
        repository, commits = line.gated_jobs.repository(
            "anvil", {".solstice/workflow.kdl": WORKFLOW}, commits=3 * PUSHES + 1
        )

        async def pushed(part: Collection[str]) -> None:
            await line.sender.send(
                [push(Source.FORGEJO, repository.url, commit, now=time.time()) for commit in part]
            )

        before, waiting, after = (commits[at : at + PUSHES] for at in range(0, 3 * PUSHES, PUSHES))
        last = commits[-1]
        await pushed(before)
        await wait_until_true("the first are built", is_shown(line, before))
        while line.orchestrators:
            await asyncio.to_thread(line.orchestrators.pop().kill)
        await pushed(waiting)
        await wait_until_true("the broker has confirmed all", line.is_published)
        await line.broker.restart_unsynced()
        await line.start_orchestrator()
        await pushed(after)
        # In the order of the queue: what was before them in it would have come.
        await wait_until_true("the last are built", is_shown(line, after))
        report = await line.audit()
        lost = {request_id for request_id, commit in line.promised.items() if commit in waiting}
        assert (set(report.lost), set(report.not_reported)) == (lost, set(waiting)), report
        assert f"lost {PUSHES}, duplicate runs 0, duplicate effects 0" in str(report)

        for answer in line.sender.answers:
            if answer.call.commit in waiting:
                await asyncio.to_thread(replay, line, answer.call.headers["x-forgejo-delivery"])
        # A delivery wakes the relay, which otherwise sees what another process stored within half a minute.
        await pushed([last])
        await wait_until_true("what was lost is built", is_shown(line, waiting))
