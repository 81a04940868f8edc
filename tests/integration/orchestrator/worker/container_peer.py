"""An executor of containers in a process to be killed: `container_peer WORK URL SHA`.

Its job is a stranger's, with a service and a proxy.
"""

import asyncio
import os
import sys
from pathlib import Path

from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts
from solstice_orchestrator.processes.orphans import adopt
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.builders import execution, job, job_request
from tests.servers.podman import IMAGE, SERVER


async def main(work: str, url: str, sha: str) -> None:
    async def log(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    adopt()
    rules = ContainerRules(network=NetworkAccess.NONE, egress=AllowedHosts(hosts=parse_hosts("pypi.org")))
    launcher = await open_podman(os.environ, rules)
    async with open_workspaces(Path(work)) as workspaces:
        executor = make_executor(
            "podman", workspaces=workspaces, git=GitPolicy(protocols=("file",)), launcher=launcher
        )
        service = ServiceSpec(name="db", image=SERVER, env={"RUN": "sleep 1000"})
        spec = job("echo begun; sleep 1000", container=ContainerSpec(image=IMAGE, services=(service,)))
        request = job_request(repo_url=url, commit_sha=sha, trusted=False)
        await executor.run(execution(spec, request), log, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
