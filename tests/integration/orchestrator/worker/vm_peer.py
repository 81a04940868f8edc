"""An executor of VMs in a process: `vm_peer WORK IMAGE URL SHA [SCRIPT]`.

Its job hands out hello.txt of the commit; artifacts are beside WORK.
"""

import asyncio
import sys
from pathlib import Path

from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes.orphans import adopt
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.executors.vms.qemu_launcher import open_qemu
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.builders import execution, job, job_request
from tests.vm_jobs import vm_rules

ENDLESS = "echo begun; sleep 1000"


async def main(work: str, image: str, url: str, sha: str, script: str = ENDLESS) -> None:
    async def log(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    adopt()
    launcher = await open_qemu(vm_rules(Path(image)), "tcg")
    async with open_workspaces(Path(work)) as workspaces:
        executor = make_executor(
            "qemu",
            workspaces=workspaces,
            git=GitPolicy(protocols=("file",)),
            launcher=launcher,
            artifacts=ArtifactKeeping(directory=ArtifactArchives(Path(work).with_name("artifacts"))),
        )
        request = job_request(repo_url=url, commit_sha=sha)
        spec = job(script, artifacts=(ArtifactSpec(name="hello", path="hello.txt"),))
        outcome = await executor.run(execution(spec, request), log, asyncio.Event())
        await log(f"{outcome.state} {outcome.reason}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
