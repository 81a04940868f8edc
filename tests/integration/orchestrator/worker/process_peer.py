"""A process executor in a process to be killed: `process_peer.py WORK URL SHA SCRIPT...`.

Every script is a job, all side by side. Copies the job's log to standard output as it comes. With CONTROL_GROUPS=no in
its environment it does without them.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes.orphans import adopt
from solstice_orchestrator.worker import workspaces as places
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.builders import execution, job, job_request


@asynccontextmanager
async def no_group(_name: str) -> AsyncIterator[str]:
    """As on a machine without control groups."""
    yield "the test wants none"


async def main(work: str, url: str, sha: str, *scripts: str) -> None:
    async def log(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    if os.environ.get("CONTROL_GROUPS") == "no":
        patch.object(places, "open_group", no_group).start()
    adopt()
    async with open_workspaces(Path(work)) as workspaces:
        executor = make_executor("process", workspaces=workspaces, git=GitPolicy(protocols=("file",)))
        request = job_request(repo_url=url, commit_sha=sha)
        runs = [executor.run(execution(job(script), request), log, asyncio.Event()) for script in scripts]
        for ending in asyncio.as_completed(runs):
            outcome = await ending
            await log(f"ended {outcome.state.value} {outcome.reason.value}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
